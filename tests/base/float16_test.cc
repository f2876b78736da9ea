// The conversions against a decoder written from the definition (sign * significand * 2^exponent,
// in double) and against the compiler's own half type. Narrowing is checked at every border:
// between two neighbouring patterns the midpoint goes to the even one, a float beside it to the
// nearer one.
#include "base/float16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nibble {
namespace {

struct Format {
  int exponent_bits;
  int mantissa_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint16_t infinity() const {
    return static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits);
  }
  // The value of a positive pattern, by definition. Infinity's pattern gives the power of two that
  // would come after the largest finite value, which is what rounding compares with.
  double Decode(uint16_t bits) const {
    const int exponent = bits >> mantissa_bits;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int significand = exponent == 0 ? mantissa : mantissa | (1 << mantissa_bits);
    return std::ldexp(significand, std::max(exponent, 1) - bias() - mantissa_bits);
  }
};

constexpr Format kBf16 = {8, 7};
constexpr Format kFp16 = {5, 10};

template <float (*Widen)(uint16_t)>
void CheckWidening(const Format& format) {
  for (uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const auto magnitude = static_cast<uint16_t>(bits & 0x7fff);
    const float value = Widen(bits);
    EXPECT_EQ(std::signbit(value), bits >= 0x8000) << std::hex << bits;
    if (magnitude > format.infinity()) {
      EXPECT_TRUE(std::isnan(value)) << std::hex << bits;
    } else if (magnitude == format.infinity()) {
      EXPECT_TRUE(std::isinf(value)) << std::hex << bits;
    } else {
      EXPECT_EQ(std::abs(double{value}), format.Decode(magnitude)) << std::hex << bits;
    }
  }
}

template <uint16_t (*Narrow)(float)>
void CheckNarrowing(const Format& format) {
  for (uint16_t low = 0; low < format.infinity(); ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const double exact_midpoint = (format.Decode(low) + format.Decode(high)) / 2;
    const auto midpoint = static_cast<float>(exact_midpoint);
    ASSERT_EQ(double{midpoint}, exact_midpoint);
    const uint16_t even = low % 2 == 0 ? low : high;
    for (const uint16_t sign : {uint16_t{0}, uint16_t{0x8000}}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      EXPECT_EQ(Narrow(s * static_cast<float>(format.Decode(low))), sign | low) << std::hex << low;
      EXPECT_EQ(Narrow(s * std::nextafter(midpoint, 0.0f)), sign | low) << std::hex << low;
      EXPECT_EQ(Narrow(s * midpoint), sign | even) << std::hex << low;
      EXPECT_EQ(Narrow(s * std::nextafter(midpoint, std::numeric_limits<float>::infinity())),
                sign | high)
          << std::hex << low;
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Narrow(infinity), format.infinity());
  EXPECT_EQ(Narrow(-infinity), 0x8000 | format.infinity());
  EXPECT_EQ(Narrow(std::numeric_limits<float>::max()), format.infinity());
}

// Every NaN, the ones whose payload lies in the dropped bits alone included, stays a NaN.
template <uint16_t (*Narrow)(float), float (*Widen)(uint16_t)>
void CheckNan() {
  for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const float narrowed = Widen(Narrow(std::bit_cast<float>(bits)));
    EXPECT_TRUE(std::isnan(narrowed)) << std::hex << bits;
    EXPECT_EQ(std::signbit(narrowed), bits >> 31 != 0) << std::hex << bits;
  }
}

TEST(Float16Test, Bf16Widening) { CheckWidening<Bf16ToFloat>(kBf16); }
TEST(Float16Test, Fp16Widening) { CheckWidening<Fp16ToFloat>(kFp16); }
TEST(Float16Test, Bf16Narrowing) { CheckNarrowing<FloatToBf16>(kBf16); }
TEST(Float16Test, Fp16Narrowing) { CheckNarrowing<FloatToFp16>(kFp16); }
TEST(Float16Test, Bf16Nan) { CheckNan<FloatToBf16, Bf16ToFloat>(); }
TEST(Float16Test, Fp16Nan) { CheckNan<FloatToFp16, Fp16ToFloat>(); }

TEST(Float16Test, RoundToBf16) {
  EXPECT_EQ(RoundToBf16(1.0f), 1.0f);
  EXPECT_EQ(RoundToBf16(std::sqrt(3072.0f)), 55.5f);  // the known case of an embedding scale
}

#ifdef __FLT16_MAX__
TEST(Float16Test, AgreesWithTheCompilersHalf) {
  for (uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
    const auto bits = static_cast<uint16_t>(pattern);
    const auto expected = static_cast<float>(std::bit_cast<_Float16>(bits));
    if (std::isnan(expected)) continue;
    EXPECT_EQ(std::bit_cast<uint32_t>(Fp16ToFloat(bits)), std::bit_cast<uint32_t>(expected));
  }
  // A stride coprime to 2^32 visits every exponent with ever new mantissas.
  uint32_t bits = 0;
  for (int i = 0; i < 2'000'000; ++i, bits += 0x9e3779b1u) {
    const auto value = std::bit_cast<float>(bits);
    if (std::isnan(value)) continue;
    ASSERT_EQ(FloatToFp16(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value)))
        << std::hexfloat << value;
  }
}
#endif

}  // namespace
}  // namespace nibble
