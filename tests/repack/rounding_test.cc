#include "repack/rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace nibble::repack {
namespace {

TEST(RoundingError, OfAHandMadeRow) {
  const std::vector<float> source = {3, 0, 0, 0, 0, 0, 0, 0, 4};
  std::vector<float> read = source;
  read[0] = 3.5f;
  const RoundingError error = Compare(source, read);
  EXPECT_EQ(error.n_values, 9u);
  EXPECT_EQ(error.max_error, 0.5);
  EXPECT_DOUBLE_EQ(error.mean_error(), 0.5 / 9);
  EXPECT_DOUBLE_EQ(error.relative_error(), 0.1);  // 0.5 of 5
  EXPECT_DOUBLE_EQ(*error.snr_db(), 20);
}

TEST(RoundingError, NoErrorHasNoRatio) {
  const std::vector<float> source = {1, -2};
  EXPECT_EQ(Compare(source, source).relative_error(), 0);
  EXPECT_EQ(Compare(source, source).snr_db(), std::nullopt);
  EXPECT_EQ(RoundingError{}.relative_error(), 0);
}

TEST(RoundingError, RowsAddUp) {
  RoundingError sum = Compare(std::vector<float>{3}, std::vector<float>{3.5});
  sum.Add(Compare(std::vector<float>{4}, std::vector<float>{4}));
  EXPECT_DOUBLE_EQ(sum.relative_error(), 0.1);
  EXPECT_EQ(sum.n_values, 2u);
}

}  // namespace
}  // namespace nibble::repack
