// Q4_0: what the bytes of ggml's 4-bit blocks mean.
//
// A row is blocks of 32 weights, 18 bytes each: an fp16 scale d, then 16 bytes, of which byte i
// holds code i + 8 in its low nibble and code i + 16, also + 8, in its high one. Codes are -8 .. 7
// and the value is d * code in float32. d may be negative: that is how a block whose extreme is
// positive uses code -8, which has no opposite. Source: ggml's description of the type. Tested by
// q4_0_test.cc, against gguf-py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace nibble::formats {

inline constexpr int kQ40BlockSize = 32;
inline constexpr int kQ40BlockBytes = 18;

// codes: 32 values in -8 .. 7; scale_bits: d as fp16.
void PackQ40Block(std::span<const int8_t, kQ40BlockSize> codes, uint16_t scale_bits,
                  std::span<std::byte, kQ40BlockBytes> block);

// Fills the codes; returns d as float (exact).
float UnpackQ40Block(std::span<const std::byte, kQ40BlockBytes> block,
                     std::span<int8_t, kQ40BlockSize> codes);

// The values that a reader computes in float32. Exact: a code has 4 bits, d has 11.
void DequantizeQ40Block(std::span<const std::byte, kQ40BlockBytes> block,
                        std::span<float, kQ40BlockSize> values);

}  // namespace nibble::formats
