#include "text/added_tokens.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

TEST(AddedTokenFinder, TakesTheLeftmostThenTheLongest) {
  const AddedTokenFinder finder({{"ab", 1}, {"abcd", 2}, {"bcde", 3}, {"b", 4}});
  const auto match = finder.Find("xxabcde", 0);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->offset, 2u);
  EXPECT_EQ(match->n_bytes, 4u);
  EXPECT_EQ(match->id, 2);
  EXPECT_EQ(finder.Find("xxabcde", 3)->id, 3);
  EXPECT_EQ(finder.Find("xabcx", 0)->id, 1);  // "abcd" begins here, but does not end
  EXPECT_FALSE(finder.Find("xacd", 0).has_value());
  EXPECT_FALSE(finder.Find("", 0).has_value());
}

TEST(AddedTokenFinder, MayBeEmpty) {
  EXPECT_FALSE(AddedTokenFinder({}).Find("anything", 0).has_value());
}

}  // namespace
}  // namespace nibble::text
