#include "formats/q6_k.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "base/float16.h"
#include "golden.h"

namespace nibble::formats {
namespace {

using Q6KValues = std::array<float, kQ6KBlockSize>;
using Q6KBlock = std::array<std::byte, kQ6KBlockBytes>;

TEST(Q6K, GgufPysBlocksHaveItsValues) {
  const auto blocks = Golden<std::byte>("q6_k_blocks");
  const auto values = Golden<float>("q6_k_values");
  ASSERT_EQ(blocks.size() / kQ6KBlockBytes, 8u);
  ASSERT_EQ(values.size() / kQ6KBlockSize, 8u);
  for (size_t i = 0; i < 8; ++i) {
    Q6KValues found;
    DequantizeQ6KBlock(std::span(blocks).subspan(i * kQ6KBlockBytes).first<kQ6KBlockBytes>(),
                       found);
    EXPECT_EQ(std::memcmp(found.data(), &values[i * kQ6KBlockSize], sizeof found), 0) << i;
  }
}

double RelativeSquaredError(std::span<const float, kQ6KBlockSize> values,
                            std::span<const std::byte, kQ6KBlockBytes> block) {
  Q6KValues found;
  DequantizeQ6KBlock(block, found);
  double errors = 0;
  double squares = 0;
  for (size_t i = 0; i < kQ6KBlockSize; ++i) {
    const double error = double{values[i]} - double{found[i]};
    errors += error * error;
    squares += double{values[i]} * double{values[i]};
  }
  return errors / squares;
}

// Every value is within half a step, or one and a half where the codes end.
void ExpectWithinSteps(std::span<const float, kQ6KBlockSize> values,
                       std::span<const std::byte, kQ6KBlockBytes> block) {
  Q6KValues found;
  DequantizeQ6KBlock(block, found);
  uint16_t super_bits = 0;
  std::memcpy(&super_bits, &block[208], sizeof super_bits);
  for (size_t i = 0; i < kQ6KBlockSize; ++i) {
    const auto scale = static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
    const float step = std::fabs(Fp16ToFloat(super_bits) * scale);
    // float32 rounds the product step * code, up to 32 steps long, by 2^-24 of it.
    const float slack = step * 0x1p-18f;
    const bool at_the_end = std::fabs(found[i]) > 30.5f * step;
    EXPECT_LE(std::fabs(values[i] - found[i]), (at_the_end ? 1.5f * step : step / 2) + slack) << i;
  }
}

// No more error than ggml's own rounding, and clearly less where the values stand on a 16-level
// grid of their own; a single block may be a little worse, as d is not searched.
TEST(Q6K, RoundsNoWorseThanGgml) {
  for (const auto& [name, most] : {std::pair("gauss", 1.0), {"tails", 1.0}, {"grid", 0.5}}) {
    const auto values = Golden<float>(fmt::format("q6_k_{}_values", name));
    const auto reference = Golden<std::byte>(fmt::format("q6_k_{}_ggml", name));
    ASSERT_EQ(values.size() / kQ6KBlockSize, 8u);
    ASSERT_EQ(reference.size() / kQ6KBlockBytes, 8u);
    double total = 0;
    double total_of_ggml = 0;
    for (size_t i = 0; i < 8; ++i) {
      const auto input = std::span(values).subspan(i * kQ6KBlockSize).first<kQ6KBlockSize>();
      Q6KBlock block;
      ASSERT_TRUE(QuantizeQ6KBlock(input, block));
      ExpectWithinSteps(input, block);
      const auto of_ggml = std::span(reference).subspan(i * kQ6KBlockBytes).first<kQ6KBlockBytes>();
      const double error = RelativeSquaredError(input, block);
      const double error_of_ggml = RelativeSquaredError(input, of_ggml);
      EXPECT_LE(error, 1.1 * error_of_ggml) << name << " " << i;
      total += error;
      total_of_ggml += error_of_ggml;
    }
    EXPECT_LE(total, most * total_of_ggml) << name;
  }
}

TEST(Q6K, ZerosAndTinyValues) {
  Q6KValues values{};
  Q6KBlock block;
  ASSERT_TRUE(QuantizeQ6KBlock(values, block));
  Q6KValues found;
  DequantizeQ6KBlock(block, found);
  EXPECT_EQ(found, values);

  // Far below d's smallest: one step is 2^-24.
  values[3] = 1e-7f;
  values[200] = -3e-8f;
  ASSERT_TRUE(QuantizeQ6KBlock(values, block));
  ExpectWithinSteps(values, block);

  // Here value / (32.5 * 127) is no float32 any more.
  values = {std::numeric_limits<float>::denorm_min()};
  ASSERT_TRUE(QuantizeQ6KBlock(values, block));
  ExpectWithinSteps(values, block);
}

TEST(Q6K, RefusesWhatHasNoFiniteScale) {
  Q6KBlock block;
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    Q6KValues values{};
    values[17] = bad;
    EXPECT_FALSE(QuantizeQ6KBlock(values, block)) << bad;
  }
  Q6KValues values{};
  values[17] = -65504.0f * 32 * 127;
  EXPECT_TRUE(QuantizeQ6KBlock(values, block));
  ExpectWithinSteps(values, block);
}

}  // namespace
}  // namespace nibble::formats
