#include "server/stop_strings.h"

#include <gtest/gtest.h>

namespace nibble::server {
namespace {

// Case G3 of the field reports.
TEST(StopStrings, CutAtEveryPlaceAndCharacterByCharacter) {
  const std::string text = "A green door";
  for (size_t i = 0; i <= text.size(); ++i) {
    StopStrings stops({"en door"});
    std::string seen = stops.Push(text.substr(0, i));
    seen += stops.Push(text.substr(i));
    EXPECT_EQ(seen + stops.Flush(), "A gre") << i;
    EXPECT_TRUE(stops.found());
  }
  StopStrings stops({"en door"});
  std::string seen;
  for (const char c : text) seen += stops.Push(std::string(1, c));
  EXPECT_EQ(seen, "A gre");
}

// Case G3 of the field reports.
TEST(StopStrings, TextBeforeAStopIsSentAndTextAfterItIsNot) {
  StopStrings stops({"\n"});
  EXPECT_EQ(stops.Push("!\n?"), "!");
  EXPECT_EQ(stops.Push("more"), "");
  EXPECT_EQ(stops.Flush(), "");
}

TEST(StopStrings, HoldsExactlyWhatMayBecomeAStop) {
  StopStrings stops({"aab", "xyz"});
  EXPECT_EQ(stops.Push("caa"), "c");
  EXPECT_EQ(stops.Push("a"), "a");
  EXPECT_EQ(stops.Push("x"), "aa");
  EXPECT_EQ(stops.Push("y"), "");
  EXPECT_FALSE(stops.found());
  EXPECT_EQ(stops.Flush(), "xy");
  StopStrings none({});
  EXPECT_EQ(none.Push("text"), "text");
}

TEST(StopStrings, TheFirstOfSeveralCounts) {
  StopStrings stops({"world", "lo w"});
  EXPECT_EQ(stops.Push("hello world"), "hel");
}

}  // namespace
}  // namespace nibble::server
