// int4 in groups of 32: what the bytes of compressed-tensors' "pack-quantized" layout mean.
//
// A linear X of [N, K] (K a multiple of 32) is X.weight_packed int32 [N, K/8], X.weight_scale [N,
// K/32] in BF16, F16 or F32, and X.weight_shape int64 [2] = {N, K}. Nibble i (bits 4i .. 4i+3) of
// word j in a row is code[8j + i] + 8, codes in -8 .. 7; on a little-endian machine the row's bytes
// are therefore codes in order, low nibble first. The value is code * scale. Source:
// compressed-tensors, compressors/pack_quantized.py. Tested by int4_group32_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace nibble::formats {

inline constexpr int kGroupSize = 32;
inline constexpr int kGroupPackedBytes = kGroupSize / 2;

// codes: 32 values in -8 .. 7; packed: 16 bytes.
void PackGroup(std::span<const int8_t, kGroupSize> codes,
               std::span<std::byte, kGroupPackedBytes> packed);
void UnpackGroup(std::span<const std::byte, kGroupPackedBytes> packed,
                 std::span<int8_t, kGroupSize> codes);

// The scale stored at `index` of a weight_scale array of that dtype (BF16, F16 or F32), as float
// (exact).
float ReadScale(std::span<const std::byte> scales, DType dtype, int64_t index);

}  // namespace nibble::formats
