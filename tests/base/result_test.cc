#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/check.h"

namespace nibble {
namespace {

Result<std::unique_ptr<int>> Positive(int value) {
  if (value <= 0) return Fail("{} is not positive", value);
  return std::make_unique<int>(value);
}

Status CheckPositive(int value) {
  NIBBLE_RETURN_IF_ERROR(Positive(value));
  return {};
}

Result<int> Sum(int a, int b) {
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<int> left, Positive(a));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<int> right, Positive(b));
  return *left + *right;
}

TEST(ResultTest, MacrosPassValuesAndErrorsOn) {
  EXPECT_EQ(Sum(2, 3), 5);
  EXPECT_EQ(Sum(-1, 3).error().message, "-1 is not positive");
  EXPECT_EQ(Sum(2, 0).error().message, "0 is not positive");
  EXPECT_TRUE(CheckPositive(1).has_value());
  EXPECT_EQ(CheckPositive(0).error().message, "0 is not positive");
}

TEST(CheckTest, NamesThePlaceAndStops) {
  CHECK(true);
  EXPECT_DEATH(CHECK(1 + 1 == 3), "result_test.cc:.*CHECK failed: 1 \\+ 1 == 3");
}

}  // namespace
}  // namespace nibble
