#include "text/gguf_vocabulary.h"

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "fixture.h"

namespace nibble::text {
namespace {

TokenizerFile ParsedSmall() { return ParseTokenizerFile(SmallTokenizerJson().dump(), "f").value(); }

TEST(GgufVocabulary, SaysWhatEachTokenIs) {
  const auto vocabulary = ToGgufVocabulary(ParsedSmall(), 272, "f");
  ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
  ASSERT_EQ(vocabulary->tokens.size(), 272u);
  ASSERT_EQ(vocabulary->types.size(), 272u);
  // llama.cpp's numbers: control, control, user-defined, byte, normal, unused.
  EXPECT_EQ(vocabulary->tokens[1], "<stop>");
  EXPECT_EQ(vocabulary->types[0], 3);
  EXPECT_EQ(vocabulary->types[1], 3);
  EXPECT_EQ(vocabulary->types[2], 4);
  EXPECT_EQ(vocabulary->types[3], 6);
  EXPECT_EQ(vocabulary->types[259], 1);
  EXPECT_EQ(vocabulary->tokens[271], "[PAD271]");
  EXPECT_EQ(vocabulary->types[271], 5);
  EXPECT_EQ(vocabulary->merges,
            (std::vector<std::string>{"b c", "a b", "c d", "ab cd", "\u2581 a"}));
}

// Case E6 of the field reports: what the tokenizer calls special is a control token.
TEST(GgufVocabulary, ThereAndBackIsTheSameTokenizer) {
  for (const std::string& json :
       {SmallTokenizerJson().dump(), ReadTextFile(kTinyModel + "/tokenizer.json").value()}) {
    const TokenizerFile file = ParseTokenizerFile(json, "f").value();
    const auto n_rows = static_cast<int>(file.tokens.size()) + 3;
    auto back = FromGgufVocabulary(ToGgufVocabulary(file, n_rows, "f").value(), "f");
    ASSERT_TRUE(back.has_value()) << back.error().message;
    const Tokenizer found(*std::move(back));
    const Tokenizer expected = Tokenizer::Parse(json, "f").value();
    for (const char* text :
         {"abcd abd <mark>a<stop>é€", "What is 23*47?\n<|turn>user <turn|>", ""}) {
      EXPECT_EQ(found.Encode(text, true), expected.Encode(text, true)) << text;
    }
    for (TokenId id = 0; id < n_rows; ++id) {
      ASSERT_EQ(found.Contains(id), expected.Contains(id)) << id;
      if (!expected.Contains(id)) continue;
      EXPECT_EQ(found.TokenOf(id), expected.TokenOf(id));
      EXPECT_EQ(found.IsSpecial(id), expected.IsSpecial(id)) << expected.TokenOf(id);
    }
  }
}

TEST(GgufVocabulary, WhatCannotBeIsRefused) {
  EXPECT_FALSE(ToGgufVocabulary(ParsedSmall(), 100, "f").has_value());
  const GgufVocabulary good = ToGgufVocabulary(ParsedSmall(), 270, "f").value();
  GgufVocabulary bad = good;
  bad.types.pop_back();
  EXPECT_FALSE(FromGgufVocabulary(bad, "f").has_value());
  bad = good;
  bad.types[5] = 77;
  EXPECT_FALSE(FromGgufVocabulary(bad, "f").has_value());
  bad = good;
  bad.merges[1] = "ab";
  const auto merge = FromGgufVocabulary(bad, "f");
  ASSERT_FALSE(merge.has_value());
  EXPECT_NE(merge.error().message.find("merge 1"), std::string::npos) << merge.error().message;
  bad = good;
  bad.tokens[259] = "";
  EXPECT_FALSE(FromGgufVocabulary(bad, "f").has_value());
}

}  // namespace
}  // namespace nibble::text
