// The oracle tries every storable scale there is (all 65,536 patterns) and, for scales that no
// dtype holds, every end of every interval in exact arithmetic; it knows nothing of peak codes.
#include "repack/grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/float16.h"

namespace nibble::repack {
namespace {

using Bits = std::array<uint16_t, kGridGroup>;
using Codes = std::array<int, kGridGroup>;

// What the reader computes.
uint16_t Read(int code, float scale) { return FloatToBf16(static_cast<float>(code) * scale); }

bool EqualValue(uint16_t a, uint16_t b) { return Bf16ToFloat(a) == Bf16ToFloat(b); }

bool ScaleGivesAllBack(const Bits& values, float scale) {
  return std::ranges::all_of(values, [&](uint16_t value) {
    for (int code = -8; code <= 7; ++code) {
      if (EqualValue(Read(code, scale), value)) return true;
    }
    return false;
  });
}

bool StorableScaleExists(const Bits& values, DType dtype) {
  for (uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
    const float scale = ScaleToFloat(static_cast<uint16_t>(pattern), dtype);
    if (std::isfinite(scale) && scale != 0 && ScaleGivesAllBack(values, scale)) return true;
  }
  return false;
}

// Does some real d > 0 satisfy round(d * |q|) = |w| for all, with q of one sign limited to 7? The
// set of such d is a union of intervals; tried are all their ends and points just inside them.
bool RealScaleExists(const Bits& values) {
  const auto admits = [](uint16_t value, double numerator, int denominator, int nudge, int limit) {
    const uint16_t size = value & 0x7fff;
    if (size == 0) return true;
    const double middle = Bf16ToFloat(size);
    const double below = (middle + Bf16ToFloat(static_cast<uint16_t>(size - 1))) / 2;
    const double step_up = size + 1 == 0x7f80
                               ? middle - Bf16ToFloat(static_cast<uint16_t>(size - 1))
                               : Bf16ToFloat(static_cast<uint16_t>(size + 1)) - middle;
    const double above = middle + step_up / 2;
    for (int code = 1; code <= limit; ++code) {
      const double product = numerator * code;  // exact, like the products on the other side
      const double low = below * denominator;
      const double high = above * denominator;
      const bool even = size % 2 == 0;
      const bool over = product > low || (product == low && (nudge > 0 || (even && nudge == 0)));
      const bool under = product < high || (product == high && (nudge < 0 || (even && nudge == 0)));
      if (over && under) return true;
    }
    return false;
  };
  if (std::ranges::all_of(values, [](uint16_t v) { return (v & 0x7fff) == 0; })) return true;
  for (const uint16_t value : values) {
    const uint16_t size = value & 0x7fff;
    if (size == 0) continue;
    const double below =
        (static_cast<double>(Bf16ToFloat(size)) + Bf16ToFloat(static_cast<uint16_t>(size - 1))) / 2;
    for (int denominator = 1; denominator <= 8; ++denominator) {
      for (const int nudge : {0, 1}) {
        for (const bool negative_has_eight : {false, true}) {
          if (std::ranges::all_of(values, [&](uint16_t v) {
                return admits(v, below, denominator, nudge,
                              ((v & 0x8000) != 0) == negative_has_eight ? 8 : 7);
              })) {
            return true;
          }
        }
      }
    }
  }
  return false;
}

// Everything that a result promises about itself, given that it carries codes and a scale.
void ExpectConsistent(const Bits& values, const GridGroup& group, DType dtype) {
  const float scale = ScaleToFloat(group.scale_bits, dtype);
  ASSERT_TRUE(std::isfinite(scale) && scale != 0);
  int n_inexact = 0;
  int n_zero_sign_lost = 0;
  int peak_code = 0;
  for (int i = 0; i < kGridGroup; ++i) {
    ASSERT_GE(group.codes[i], -8);
    ASSERT_LE(group.codes[i], 7);
    peak_code = std::max(peak_code, std::abs(group.codes[i]));
    const uint16_t read = Read(group.codes[i], scale);
    n_inexact += EqualValue(read, values[i]) ? 0 : 1;
    n_zero_sign_lost += EqualValue(read, values[i]) && read != values[i] ? 1 : 0;
  }
  EXPECT_EQ(group.n_inexact, n_inexact);
  EXPECT_EQ(group.n_zero_sign_lost, n_zero_sign_lost);
  EXPECT_EQ(group.peak_code, peak_code);
  EXPECT_EQ(group.worst_ulp == 0, n_inexact == 0);
  EXPECT_TRUE(group.outcome != Outcome::kExact || n_inexact == 0);
  EXPECT_TRUE(group.outcome != Outcome::kNearest || n_inexact > 0);
}

enum class Behind { kFp16, kBf16, kF32 };

struct Sample {
  Bits values;
  Codes codes;
  float scale = 0;
};

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  // bf16(d * q), d of the given precision and either sign, codes up to `peak_code` in size. As with
  // Q4_0, a peak of 8 is always the code -8.
  Sample Draw(Behind behind, int peak_code, double log2_low, double log2_high) {
    Sample sample;
    std::uniform_real_distribution<double> exponent(log2_low, log2_high);
    float scale = static_cast<float>(std::exp2(exponent(random_)));
    if (behind == Behind::kFp16) scale = Fp16ToFloat(FloatToFp16(scale));
    if (behind == Behind::kBf16) scale = RoundToBf16(scale);
    sample.scale = random_() % 2 == 0 ? scale : -scale;
    const int low = -peak_code;
    const int high = std::min(peak_code, 7);
    std::uniform_int_distribution<int> code(low, high);
    for (int& q : sample.codes) q = code(random_);
    const bool at_low = peak_code == 8 || random_() % 2 == 0;
    sample.codes[random_() % kGridGroup] = at_low ? low : high;
    for (int i = 0; i < kGridGroup; ++i) sample.values[i] = Read(sample.codes[i], sample.scale);
    return sample;
  }

  // Peaks as a Q4_0 quantiser leaves them on Gaussian weights: the extreme has code -8.
  Sample DrawGaussian(Behind behind) {
    const float sigma = std::exp2(-6 + static_cast<float>(random_() % 1024) / 1024);
    std::normal_distribution<float> normal(0, sigma);
    std::array<float, kGridGroup> weights;
    float peak = 0;
    for (float& weight : weights) {
      weight = normal(random_);
      if (std::fabs(weight) > std::fabs(peak)) peak = weight;
    }
    Sample sample;
    sample.scale = peak / -8;
    if (behind == Behind::kFp16) sample.scale = Fp16ToFloat(FloatToFp16(sample.scale));
    if (behind == Behind::kBf16) sample.scale = RoundToBf16(sample.scale);
    for (int i = 0; i < kGridGroup; ++i) {
      const float code = std::floor(weights[i] * (-8 / peak) + 0.5f);
      sample.codes[i] = static_cast<int>(std::clamp(code, -8.0f, 7.0f));
      sample.values[i] = Read(sample.codes[i], sample.scale);
    }
    return sample;
  }

  uint32_t Next() { return static_cast<uint32_t>(random_()); }

 private:
  std::mt19937 random_;
};

Bits Repeat(float value) {
  Bits bits;
  bits.fill(FloatToBf16(value));
  return bits;
}

TEST(Grid, FindsAStorableScaleExactlyWhenOneExists) {
  Generator generator(1);
  int n_nearest = 0;
  for (const Behind behind : {Behind::kFp16, Behind::kBf16, Behind::kF32}) {
    for (int peak_code = 1; peak_code <= 8; ++peak_code) {
      for (int round = 0; round < 12; ++round) {
        const Sample sample = generator.Draw(behind, peak_code, -13, 10);
        for (const DType dtype : {DType::kF16, DType::kBF16}) {
          const GridGroup group = RecoverGroup(sample.values, dtype);
          ASSERT_TRUE(group.outcome == Outcome::kExact || group.outcome == Outcome::kNearest);
          ExpectConsistent(sample.values, group, dtype);
          EXPECT_EQ(group.outcome == Outcome::kExact, StorableScaleExists(sample.values, dtype));
          n_nearest += group.outcome == Outcome::kNearest ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(n_nearest, 50);  // or the test shows nothing
}

TEST(Grid, EveryGroupOnTheGridIsRecoveredAndNothingElse) {
  Generator generator(2);
  int n_on_grid = 0;
  int n_off_grid = 0;
  for (int round = 0; round < 4000; ++round) {
    Sample sample = generator.Draw(Behind::kF32, 1 + round % 8, -20, 20);
    // One value moved by a few steps: mostly off the grid, sometimes still on it.
    if (round % 2 == 0) {
      const uint32_t column = generator.Next() % kGridGroup;
      sample.values[column] = static_cast<uint16_t>(sample.values[column] + generator.Next() % 4);
    }
    const GridGroup group = RecoverGroup(sample.values, DType::kBF16);
    const bool exists = RealScaleExists(sample.values);
    EXPECT_EQ(group.outcome != Outcome::kOffGrid, exists) << "round " << round;
    (exists ? n_on_grid : n_off_grid) += 1;
  }
  EXPECT_GT(n_on_grid, 2000);
  EXPECT_GT(n_off_grid, 500);
}

TEST(Grid, CodesAreThoseOfTheQuantiserUnlessAnotherReadingGivesTheSameValues) {
  Generator generator(3);
  int n_same = 0;
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    const Sample sample = generator.DrawGaussian(Behind::kF32);
    const GridGroup group = RecoverGroup(sample.values, DType::kBF16);
    const bool same =
        std::ranges::equal(group.codes, sample.codes, [](int8_t a, int b) { return a == b; });
    n_same += same ? 1 : 0;
  }
  EXPECT_EQ(n_same, kRounds);
}

// The shares that docs/GRID.md and the reference name, on 200,000 groups each.
struct Shares {
  double fp16 = 0;
  double bf16 = 0;
  double plain_rule = 0;  // d = fp16(extreme / -8)
  double amax_7_5 = 0;
};

Shares MeasureShares(Behind behind) {
  Generator generator(4);
  constexpr int kGroups = 200000;
  Shares n;
  for (int i = 0; i < kGroups; ++i) {
    const Sample sample = generator.DrawGaussian(behind);
    n.fp16 += RecoverGroup(sample.values, DType::kF16).outcome == Outcome::kExact ? 1 : 0;
    n.bf16 += RecoverGroup(sample.values, DType::kBF16).outcome == Outcome::kExact ? 1 : 0;
    float peak = 0;
    for (const uint16_t value : sample.values) {
      if (std::fabs(Bf16ToFloat(value)) > std::fabs(peak)) peak = Bf16ToFloat(value);
    }
    n.plain_rule += ScaleGivesAllBack(sample.values, Fp16ToFloat(FloatToFp16(peak / -8))) ? 1 : 0;
    n.amax_7_5 += ScaleGivesAllBack(sample.values, std::fabs(peak) / 7.5f) ? 1 : 0;
  }
  return {n.fp16 / kGroups, n.bf16 / kGroups, n.plain_rule / kGroups, n.amax_7_5 / kGroups};
}

TEST(Grid, SharesByWhatLiesBehindTheValues) {
  const Shares fp16 = MeasureShares(Behind::kFp16);
  const Shares bf16 = MeasureShares(Behind::kBf16);
  const Shares f32 = MeasureShares(Behind::kF32);
  for (const auto& [name, shares] : {std::pair{"fp16", fp16}, {"bf16", bf16}, {"f32", f32}}) {
    std::printf("%s behind: fp16 exact %.4f, bf16 exact %.4f, extreme/-8 %.4f, amax/7.5 %.4f\n",
                name, shares.fp16, shares.bf16, shares.plain_rule, shares.amax_7_5);
  }
  EXPECT_EQ(fp16.fp16, 1.0);
  EXPECT_EQ(bf16.bf16, 1.0);
  EXPECT_NEAR(fp16.bf16, 0.48, 0.02);
  EXPECT_NEAR(fp16.plain_rule, 0.48, 0.02);
  EXPECT_NEAR(f32.fp16, 0.977, 0.005);
  EXPECT_EQ(fp16.amax_7_5, 0.0);
}

TEST(Grid, PositiveExtremeKeepsItsSign) {
  Bits values = Repeat(0.0625f);
  values[7] = FloatToBf16(0.5f);
  values[9] = FloatToBf16(-0.4375f);
  const GridGroup group = RecoverGroup(values, DType::kF16);
  ASSERT_EQ(group.outcome, Outcome::kExact);
  EXPECT_EQ(ScaleToFloat(group.scale_bits, DType::kF16), -0.0625f);
  EXPECT_EQ(group.codes[7], -8);
  EXPECT_EQ(group.codes[9], 7);
}

TEST(Grid, ExtremesOfBothSignsNeedPeakSeven) {
  // +8 and -8 steps at once cannot be coded; +7 and -7 can.
  Bits values = Repeat(1.0f);
  values[0] = FloatToBf16(8.0f);
  values[1] = FloatToBf16(-8.0f);
  EXPECT_EQ(RecoverGroup(values, DType::kF16).outcome, Outcome::kOffGrid);
  values[0] = FloatToBf16(7.0f);
  values[1] = FloatToBf16(-7.0f);
  const GridGroup group = RecoverGroup(values, DType::kF16);
  ASSERT_EQ(group.outcome, Outcome::kExact);
  EXPECT_EQ(group.peak_code, 7);
}

TEST(Grid, AmbiguousGroupsTakeTheLargestExactPeakCode) {
  const GridGroup group = RecoverGroup(Repeat(0.75f), DType::kF16);
  ASSERT_EQ(group.outcome, Outcome::kExact);
  EXPECT_EQ(group.peak_code, 8);
  EXPECT_EQ(ScaleToFloat(group.scale_bits, DType::kF16), -0.09375f);
}

TEST(Grid, ZeroGroupsHaveFiniteScalesAndKeepTheZerosSigns) {
  const GridGroup positive = RecoverGroup(Repeat(0.0f), DType::kF16);
  EXPECT_EQ(positive.outcome, Outcome::kZero);
  EXPECT_EQ(ScaleToFloat(positive.scale_bits, DType::kF16), 1.0f);
  const GridGroup negative = RecoverGroup(Repeat(-0.0f), DType::kBF16);
  EXPECT_EQ(negative.outcome, Outcome::kZero);
  EXPECT_EQ(ScaleToFloat(negative.scale_bits, DType::kBF16), -1.0f);
  Bits mixed = Repeat(0.0f);
  mixed[3] = 0x8000;
  const GridGroup group = RecoverGroup(mixed, DType::kF16);
  for (const GridGroup& zero : {positive, negative, group}) {
    EXPECT_TRUE(std::ranges::all_of(zero.codes, [](int8_t code) { return code == 0; }));
    EXPECT_EQ(zero.n_inexact, 0);
  }
  EXPECT_EQ(positive.n_zero_sign_lost, 0);
  EXPECT_EQ(negative.n_zero_sign_lost, 0);
  EXPECT_EQ(group.n_zero_sign_lost, 1);
}

TEST(Grid, ZerosDecideTheSignWhereNothingElseDoes) {
  for (const float scale : {0.25f, -0.25f}) {
    Bits values;
    for (int i = 0; i < kGridGroup; ++i) values[i] = Read(i % 7 - 3, scale);
    const GridGroup group = RecoverGroup(values, DType::kF16);
    ASSERT_EQ(group.outcome, Outcome::kExact);
    EXPECT_EQ(std::signbit(ScaleToFloat(group.scale_bits, DType::kF16)), scale < 0);
    EXPECT_EQ(group.n_zero_sign_lost, 0);
  }
}

TEST(Grid, SubnormalAndHugeGroups) {
  Generator generator(5);
  for (int round = 0; round < 300; ++round) {
    for (const auto& [low, high] : {std::pair{-133.0, -118.0}, {118.0, 124.9}}) {
      const Sample sample = generator.Draw(Behind::kBf16, 1 + round % 8, low, high);
      const GridGroup group = RecoverGroup(sample.values, DType::kBF16);
      const bool all_zero =
          std::ranges::all_of(sample.values, [](uint16_t v) { return (v & 0x7fff) == 0; });
      ASSERT_EQ(group.outcome, all_zero ? Outcome::kZero : Outcome::kExact) << sample.scale;
      ExpectConsistent(sample.values, group, DType::kBF16);
      if (!all_zero) {
        EXPECT_EQ(RecoverGroup(sample.values, DType::kF16).outcome, Outcome::kScaleOutOfRange);
      }
    }
    const Sample sample = generator.Draw(Behind::kF32, 1 + round % 8, -136, -118);
    const GridGroup group = RecoverGroup(sample.values, DType::kBF16);
    EXPECT_NE(group.outcome, Outcome::kOffGrid) << sample.scale;
    if (group.outcome == Outcome::kNearest) {
      ExpectConsistent(sample.values, group, DType::kBF16);
      EXPECT_FALSE(StorableScaleExists(sample.values, DType::kBF16));
    }
  }
}

TEST(Grid, SubnormalHalfScalesAreExact) {
  Generator generator(6);
  for (int round = 0; round < 1000; ++round) {
    const Sample sample = generator.Draw(Behind::kFp16, 1 + round % 8, -24, -14);
    const GridGroup group = RecoverGroup(sample.values, DType::kF16);
    ASSERT_EQ(group.outcome, Outcome::kExact);
    ExpectConsistent(sample.values, group, DType::kF16);
  }
}

TEST(Grid, NonFiniteValuesAreNamedByTheirColumn) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF, -HUGE_VALF}) {
    Bits values = Repeat(1.0f);
    values[19] = FloatToBf16(bad);
    values[25] = FloatToBf16(bad);
    const GridGroup group = RecoverGroup(values, DType::kF16);
    EXPECT_EQ(group.outcome, Outcome::kNotFinite);
    EXPECT_EQ(group.column, 19);
  }
}

TEST(Grid, RoundingNamesTheOneValueThatIsOff) {
  Generator generator(7);
  int n_named = 0;
  for (int round = 0; round < 200; ++round) {
    Sample sample = generator.Draw(Behind::kFp16, 8, -8, -4);
    const uint32_t column = generator.Next() % kGridGroup;
    if (std::abs(sample.codes[column]) > 6) continue;
    sample.values[column] =
        FloatToBf16((static_cast<float>(sample.codes[column]) + 0.4f) * sample.scale);
    ASSERT_EQ(RecoverGroup(sample.values, DType::kF16).outcome, Outcome::kOffGrid);
    const GridGroup rounded = RoundGroup(sample.values, DType::kF16);
    EXPECT_EQ(rounded.outcome, Outcome::kOffGrid);
    ExpectConsistent(sample.values, rounded, DType::kF16);
    EXPECT_EQ(rounded.column, column);
    EXPECT_EQ(rounded.codes[column], sample.codes[column]);
    ++n_named;
  }
  EXPECT_GT(n_named, 100);
}

}  // namespace
}  // namespace nibble::repack
