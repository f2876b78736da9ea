// bfloat16 and IEEE half as bit patterns, with exact conversions in plain integer arithmetic: the
// same on every machine, usable in constant expressions, and the truth that faster kernels are
// compared with.
//
// Narrowing rounds to nearest, ties to even; overflow gives infinity; a NaN stays a (quiet) NaN.
// Tested by float16_test.cc, exhaustively over all 65,536 patterns.
#pragma once

#include <bit>
#include <cstdint>

namespace nibble {

constexpr float Bf16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

constexpr uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  const uint32_t to_even = ((bits >> 16) & 1u) + 0x7fffu;
  return static_cast<uint16_t>((bits + to_even) >> 16);
}

constexpr float Fp16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // exact: 10 bits
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

constexpr uint16_t FloatToFp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude >= 0x38800000u) {  // normal half: >= 2^-14
    const uint32_t to_even = ((magnitude >> 13) & 1u) + 0xfffu;
    return static_cast<uint16_t>(sign | ((magnitude + to_even - (112u << 23)) >> 13));
  }
  if (magnitude < 0x33000000u) return sign;  // below 2^-25: zero
  // Subnormal half: count units of 2^-24, rounding the shifted-out bits to even.
  const uint32_t shift = 126 - (magnitude >> 23);
  const uint32_t full = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t units = full >> shift;
  const uint32_t rest = full & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  const uint32_t up = (rest > half || (rest == half && (units & 1u))) ? 1 : 0;
  return static_cast<uint16_t>(sign | (units + up));
}

// The float rounded to bfloat16 precision.
constexpr float RoundToBf16(float value) { return Bf16ToFloat(FloatToBf16(value)); }

}  // namespace nibble
