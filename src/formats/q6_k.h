// Q6_K: what the bytes of ggml's 6-bit super-blocks mean, and how values are rounded to them.
//
// A row is super-blocks of 256 values, 210 bytes each: low nibbles [128], upper two bits [64], int8
// scales [16], one per 16 values, and an fp16 scale d. In each half of 128 values, value 32k + l (k
// in 0 .. 3, l in 0 .. 31) has its nibble in byte l + 32 (k % 2) of the half's 64, low if k < 2,
// and its two bits in byte l of the half's 32 at bit 2k. Codes are -32 .. 31 (stored + 32), and the
// value is (d * scale) * code in float32, in that order. Source: ggml's description of the type.
// Tested by q6_k_test.cc, against gguf-py (values) and ggml's own rounding (error).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nibble::formats {

inline constexpr int kQ6KBlockSize = 256;
inline constexpr int kQ6KBlockBytes = 210;

inline constexpr int kQ6KGroupSize = 16;
inline constexpr int kQ6KGroups = kQ6KBlockSize / kQ6KGroupSize;

// The codes, and the steps (d * scale, exact in float32) of the groups of 16.
void UnpackQ6KBlock(std::span<const std::byte, kQ6KBlockBytes> block,
                    std::span<int8_t, kQ6KBlockSize> codes, std::span<float, kQ6KGroups> steps);

// The values that a reader computes in float32.
void DequantizeQ6KBlock(std::span<const std::byte, kQ6KBlockBytes> block,
                        std::span<float, kQ6KBlockSize> values);

// Rounds 256 values. For each 16 of them it tries every int8 scale that makes the extreme a code of
// size 24 to 32 and takes the one with the least sum of squared errors. Every value is off by at
// most half a step (d * scale), but for values near -extreme, where the codes end at 31: one and a
// half. Where values stand on a 16-level grid, as quantization-aware training leaves them, steps
// close to a divisor of the grid's are among those tried.
// False, and the block is unspecified, if a value is not finite or too large for an fp16 d.
[[nodiscard]] bool QuantizeQ6KBlock(std::span<const float, kQ6KBlockSize> values,
                                    std::span<std::byte, kQ6KBlockBytes> block);

}  // namespace nibble::formats
