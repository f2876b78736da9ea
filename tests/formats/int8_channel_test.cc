#include "formats/int8_channel.h"

#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "golden.h"

namespace nibble::formats {
namespace {

TEST(Int8Channel, RoundsAsCompressedTensorsDoes) {
  const auto rows = Golden<float>("int8_rows");
  for (const auto& [name, dtype] : {std::pair("f32", DType::kF32), {"bf16", DType::kBF16}}) {
    const auto scales = Golden<float>(fmt::format("int8_{}_scales", name));
    const auto codes = Golden<int8_t>(fmt::format("int8_{}_codes", name));
    const auto values = Golden<float>(fmt::format("int8_{}_values", name));
    ASSERT_EQ(scales.size(), 6u);
    ASSERT_EQ(codes.size(), rows.size());
    const size_t n_columns = rows.size() / scales.size();
    for (size_t n = 0; n < scales.size(); ++n) {
      const auto row = std::span(rows).subspan(n * n_columns, n_columns);
      const float scale = Int8ChannelScale(row, dtype);
      EXPECT_EQ(scale, scales[n]) << name << " " << n;
      std::vector<int8_t> found(n_columns);
      QuantizeInt8Channel(row, scale, found);
      EXPECT_EQ(std::memcmp(found.data(), &codes[n * n_columns], n_columns), 0) << name << " " << n;
      for (size_t k = 0; k < n_columns; ++k) {
        EXPECT_EQ(static_cast<float>(found[k]) * scale, values[n * n_columns + k]);
      }
    }
  }
}

TEST(Int8Channel, TiesGoToTheEvenCode) {
  const std::array row = {127.0f, 0.5f, 1.5f, -0.5f, -2.5f, -126.5f};
  const float scale = Int8ChannelScale(row, DType::kF32);
  EXPECT_EQ(scale, 1.0f);
  std::array<int8_t, 6> codes;
  QuantizeInt8Channel(row, scale, codes);
  EXPECT_EQ(codes, (std::array<int8_t, 6>{127, 0, 2, 0, -2, -126}));
}

TEST(Int8Channel, RowsOfZerosAndOfTheSmallestNumberHaveFiniteScales) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const float largest :
         {0.0f, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min()}) {
      const std::array row = {-largest, largest, 0.0f};
      const float scale = Int8ChannelScale(row, dtype);
      EXPECT_TRUE(std::isfinite(scale) && scale > 0);
      std::array<int8_t, 3> codes;
      QuantizeInt8Channel(row, scale, codes);
      EXPECT_EQ(codes[0], -codes[1]);
      EXPECT_EQ(codes[2], 0);
    }
  }
}

}  // namespace
}  // namespace nibble::formats
