#include "repack/verify_measure.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "base/float16.h"
#include "base/thread_pool.h"
#include "repack/verify_int4.h"
#include "repack/verify_int8.h"

namespace nibble::repack {
namespace {

using Levels = std::array<int8_t, 32>;
using SourceBytes = std::array<std::byte, 64>;

SourceBytes ValuesOf(const Levels& levels, float step) {
  SourceBytes bytes;
  for (size_t i = 0; i < levels.size(); ++i) {
    const uint16_t bits = FloatToBf16(static_cast<float>(levels[i]) * step);
    std::memcpy(&bytes[2 * i], &bits, sizeof bits);
  }
  return bytes;
}

Levels RandomLevels(std::mt19937& random, int largest) {
  Levels levels;
  for (int8_t& level : levels) {
    level = static_cast<int8_t>(static_cast<int>(random() % (2 * largest + 1)) - largest);
  }
  return levels;
}

TEST(Measure, LevelsOfARandomGridAreFoundWhateverItsStep) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> step(0.001f, 0.1f);
  for (int i = 0; i < 2000; ++i) {
    Levels levels = RandomLevels(random, 1 + static_cast<int>(random() % 7));
    if (random() % 2 == 0) levels[random() % 32] = random() % 2 == 0 ? 8 : -8;
    const SourceBytes source = ValuesOf(levels, step(random));
    ASSERT_EQ(CountMovedLevels(source, levels), 0);
    Levels moved = levels;
    moved[5] = static_cast<int8_t>(moved[5] > 0 ? moved[5] - 1 : moved[5] + 1);
    ASSERT_LE(CountMovedLevels(source, moved), 1);
  }
}

TEST(Measure, EveryMovedLevelCounts) {
  Levels levels;
  for (int i = 0; i < 32; ++i) levels[i] = static_cast<int8_t>(i % 16 - 8);
  const SourceBytes source = ValuesOf(levels, 0.01f);
  Levels moved = levels;
  for (const int i : {1, 7, 30}) moved[i] = static_cast<int8_t>(moved[i] + 1);
  EXPECT_EQ(CountMovedLevels(source, moved), 3);
}

// {d, -d} may be levels 1 .. 8: each of them explains it.
TEST(Measure, AnAmbiguousGroupIsChargedForTheNearestExplanation) {
  Levels levels{};
  levels[0] = 1;
  levels[9] = -1;
  const SourceBytes source = ValuesOf(levels, 0.25f);
  for (int8_t peak = 1; peak <= 7; ++peak) {
    Levels packed{};
    packed[0] = peak;
    packed[9] = static_cast<int8_t>(-peak);
    EXPECT_EQ(CountMovedLevels(source, packed), 0);
  }
}

TEST(Measure, WhatLiesOnNoGridHasNoLevels) {
  Levels levels{};
  levels[0] = 8;
  SourceBytes source = ValuesOf(levels, 1.0f);
  const uint16_t between = FloatToBf16(4.45f);
  std::memcpy(&source[10], &between, sizeof between);
  EXPECT_EQ(CountMovedLevels(source, levels), std::nullopt);
}

TEST(Measure, ErrorsOfAHandMadeMatrix) {
  Measurement measured;
  measured.AddValue(3, 3.5f);
  measured.AddValue(4, 4);
  EXPECT_DOUBLE_EQ(measured.relative_error(), 0.1);
  EXPECT_DOUBLE_EQ(*measured.snr_db(), 20);
  EXPECT_EQ(measured.max_error, 0.5);
}

// Groups of 64 with float32 scales, as other makers write them: two source groups share a scale.
TEST(VerifyInt4, WiderGroupsAndFloatScalesAreMeasured) {
  Levels levels;
  for (int i = 0; i < 32; ++i) levels[i] = static_cast<int8_t>(i % 16 - 8);
  std::array<std::byte, 128> source;
  const SourceBytes group = ValuesOf(levels, 0.25f);
  std::ranges::copy(group, source.begin());
  std::ranges::copy(group, source.begin() + 64);
  std::array<std::byte, 32> codes;
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] =
        static_cast<std::byte>((levels[2 * i % 32] + 8) | (levels[(2 * i + 1) % 32] + 8) << 4);
  }
  float scale = 0.25f;
  Int4Matrix matrix{.source = source,
                    .codes = codes,
                    .scales = std::as_bytes(std::span(&scale, 1)),
                    .scale_dtype = DType::kF32,
                    .n_columns = 64,
                    .group_size = 64};
  ThreadPool pool(1);
  const Int4Proof exact = ProveInt4(matrix, pool);
  EXPECT_EQ(exact.counts.n_right_groups, 2u);
  EXPECT_EQ(exact.measured.relative_error(), 0);
  EXPECT_FALSE(exact.first_wrong.has_value());

  scale = 0.275f;  // ten percent off: right codes, no right values
  const Int4Proof off = ProveInt4(matrix, pool);
  EXPECT_EQ(off.counts.n_right_groups, 0u);
  EXPECT_NEAR(off.measured.relative_error(), 0.1, 0.002);
  EXPECT_EQ(off.measured.n_moved, 0u);
  EXPECT_EQ(off.first_wrong, 0);
  EXPECT_NE(DescribeInt4Fault(matrix, 0).find("row 0 group 0 column 0: level -8"),
            std::string::npos);
}

class VerifyInt8Test : public testing::Test {
 protected:
  VerifyInt8Test() {
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = FloatToBf16(static_cast<float>(i) - 3);
    }
  }
  Int8Check Check() { return CheckInt8(matrix_, pool_); }

  std::array<uint16_t, 8> values_;  // -3 .. 4: two rows of four, scales 3 / 127 and 4 / 127
  std::array<int8_t, 8> codes_ = {-127, -85, -42, 0, 32, 64, 95, 127};
  std::array<float, 2> scales_ = {3.0f / 127, 4.0f / 127};
  Int8Matrix matrix_{.source = std::as_bytes(std::span(values_)),
                     .codes = std::as_bytes(std::span(codes_)),
                     .scales = std::as_bytes(std::span(scales_)),
                     .scale_dtype = DType::kF32,
                     .n_columns = 4};
  ThreadPool pool_{1};
};

TEST_F(VerifyInt8Test, TheRulesCodesAreRightAndNotExact) {
  const Int8Check check = Check();
  EXPECT_EQ(check.n_right_rows, 2u) << DescribeInt8Fault(matrix_, 0);
  EXPECT_EQ(check.measured.n_moved, 0u);
  EXPECT_GT(check.measured.relative_error(), 0);
}

TEST_F(VerifyInt8Test, AnotherCodeAndAnotherScaleAreNamed) {
  codes_[6] = 96;
  EXPECT_EQ(Check().first_wrong_row, 1);
  EXPECT_EQ(Check().measured.n_moved, 1u);
  EXPECT_NE(DescribeInt8Fault(matrix_, 1).find("row 1 column 2: code is 96, expected 95"),
            std::string::npos);
  scales_[0] = 3.0f / 127.5f;
  EXPECT_EQ(Check().first_wrong_row, 0);
  EXPECT_NE(DescribeInt8Fault(matrix_, 0).find("row 0: scale is "), std::string::npos);
}

}  // namespace
}  // namespace nibble::repack
