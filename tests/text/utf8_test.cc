#include "text/utf8.h"

#include <gtest/gtest.h>

namespace nibble::text {
namespace {

// Right values: Python's bytes.decode(errors="replace").
TEST(Utf8, ReplacesMaximalSubparts) {
  EXPECT_EQ(ReplaceInvalidUtf8("caf\xe9"), "caf\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xe2\x82x"), "\uFFFDx");
  EXPECT_EQ(ReplaceInvalidUtf8("\xf0\x9f\x99"), "\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xc0\xaf"), "\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xf4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(ReplaceInvalidUtf8("\xf0\x80\x80\x41"), "\uFFFD\uFFFD\uFFFD\x41");
}

TEST(Utf8, KeepsEveryValidCharacter) {
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string bytes;
    const auto add = [&](char32_t byte) { bytes.push_back(static_cast<char>(byte)); };
    const auto tail = [&](int shift) { add(0x80 | ((c >> shift) & 0x3f)); };
    if (c < 0x80) {
      add(c);
    } else if (c < 0x800) {
      add(0xc0 | (c >> 6)), tail(0);
    } else if (c < 0x10000) {
      add(0xe0 | (c >> 12)), tail(6), tail(0);
    } else {
      add(0xf0 | (c >> 18)), tail(12), tail(6), tail(0);
    }
    const Character character = CharacterAt(bytes, 0);
    ASSERT_TRUE(character.valid);
    ASSERT_EQ(character.code_point, c);
    ASSERT_EQ(character.n_bytes, bytes.size());
  }
}

TEST(Utf8, StripsWhatPythonStrips) {
  EXPECT_EQ(StripWhitespace(" \t\n\v\f\r\x1c\x1f\u0085\u00a0\u1680\u2009\u2028\u202f\u3000"), "");
  EXPECT_EQ(StripWhitespace("\u3000a b\u00a0"), "a b");
  EXPECT_EQ(StripWhitespace("\u200bx\ufeff"), "\u200bx\ufeff");
}

}  // namespace
}  // namespace nibble::text
