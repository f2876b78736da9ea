#include "repack/pack_rounded.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/float16.h"
#include "base/thread_pool.h"

namespace nibble::repack {
namespace {

// A bf16 matrix and its bytes.
struct Source {
  std::vector<uint16_t> bits;
  checkpoint::Tensor tensor;

  Source(int64_t n_rows, int64_t n_columns, const std::vector<float>& values) {
    for (const float value : values) bits.push_back(FloatToBf16(value));
    tensor.info = {.name = "x.weight", .dtype = DType::kBF16, .shape = {n_rows, n_columns}};
    tensor.bytes = std::as_bytes(std::span(bits));
    tensor.shard = "s";
  }
};

class PackRoundedTest : public testing::Test {
 protected:
  Status Int8(const Source& source) {
    const int64_t n_rows = source.tensor.info.shape[0];
    codes_.resize(source.bits.size());
    scales_.resize(n_rows * sizeof(float));
    return PackInt8Rows(source.tensor, 0, n_rows, codes_, scales_, pool_, &error_);
  }
  Status MinMax(const Source& source, DType scale_dtype) {
    codes_.resize(source.bits.size() / 2);
    scales_.resize(source.bits.size() / 32 * 2);
    return PackMinMaxRows(source.tensor, 0, source.tensor.info.shape[0], scale_dtype, codes_,
                          scales_, pool_, &error_);
  }

  ThreadPool pool_{2};
  std::vector<std::byte> codes_;
  std::vector<std::byte> scales_;
  RoundingError error_;
};

TEST_F(PackRoundedTest, Int8OfTwoRows) {
  ASSERT_TRUE(Int8(Source(2, 4, {127, -127, 2.5, 1.5, 0, 0, 0, 0})).has_value());
  const int8_t expected[] = {127, -127, 2, 2, 0, 0, 0, 0};  // ties to even
  EXPECT_EQ(std::memcmp(codes_.data(), expected, sizeof expected), 0);
  float scales[2];
  std::memcpy(scales, scales_.data(), sizeof scales);
  EXPECT_EQ(scales[0], 1);
  EXPECT_EQ(scales[1], 1);
  EXPECT_EQ(error_.max_error, 0.5);
}

// Two runs whose steps differ by 77: a channel's one scale cannot serve both.
TEST_F(PackRoundedTest, GroupsOfDifferentStepsCannotShareAScale) {
  std::vector<float> values;
  for (int i = 0; i < 32; ++i) values.push_back(static_cast<float>(i % 16 - 8));
  for (int i = 0; i < 32; ++i) values.push_back(0.013f * static_cast<float>(i % 16 - 8));
  ASSERT_TRUE(Int8(Source(1, 64, values)).has_value());
  EXPECT_GT(error_.relative_error(), 1e-3);
}

TEST_F(PackRoundedTest, MinMaxMovesEveryValueOfAFullGroup) {
  std::vector<float> values(32, 0.5f);
  values[1] = -4;  // amax: scale 4 / 7.5
  values[2] = 4;
  ASSERT_TRUE(MinMax(Source(1, 32, values), DType::kF16).has_value());
  uint16_t bits = 0;
  std::memcpy(&bits, scales_.data(), sizeof bits);
  EXPECT_EQ(Fp16ToFloat(bits), Fp16ToFloat(FloatToFp16(4 / 7.5f)));
  EXPECT_EQ(codes_[0], std::byte{0x09});  // 0.94 -> 1; -7.5 -> -8, low nibble first, plus 8
  EXPECT_EQ(codes_[1], std::byte{0x9f});  // 7.5 -> 8 does not exist: 7
  EXPECT_NEAR(error_.max_error, 4 - 7 * 4 / 7.5, 0.01);
}

TEST_F(PackRoundedTest, WhatCannotBeRoundedIsAnErrorWithItsPlace) {
  std::vector<float> values(64, 1.0f);
  values[35] = std::numeric_limits<float>::quiet_NaN();
  for (const Status& status :
       {Int8(Source(2, 32, values)), MinMax(Source(2, 32, values), DType::kBF16)}) {
    ASSERT_FALSE(status.has_value());
    EXPECT_NE(status.error().message.find("x.weight row 1: column 3"), std::string::npos);
  }
  values.assign(32, 1e-9f);
  EXPECT_FALSE(MinMax(Source(1, 32, values), DType::kF16).has_value());
  EXPECT_TRUE(MinMax(Source(1, 32, values), DType::kBF16).has_value());
  EXPECT_TRUE(Int8(Source(1, 32, values)).has_value());
}

}  // namespace
}  // namespace nibble::repack
