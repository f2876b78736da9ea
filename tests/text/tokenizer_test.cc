// Right values: the `tokenizers` library 0.23.3 on the same files.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include "fixture.h"

namespace nibble::text {
namespace {

using Ids = std::vector<TokenId>;

TEST(Tokenizer, MergesByRank) {
  const Tokenizer tokenizer = Small();
  EXPECT_EQ(tokenizer.Encode("abcd", false), (Ids{259, 268, 262}));
  EXPECT_EQ(tokenizer.Encode("abab cd", false), (Ids{265, 265, 263, 266}));
  EXPECT_EQ(tokenizer.Encode("acd", false), (Ids{259, 266}));
  EXPECT_EQ(tokenizer.Encode("abd cd abab", false), (Ids{265, 262, 263, 266, 263, 265, 265}));
  EXPECT_EQ(tokenizer.Encode(" a", false), (Ids{269}));
  EXPECT_EQ(tokenizer.Encode("ab\u2581a", false), (Ids{265, 269}));
}

TEST(Tokenizer, PutsBosInFrontOnDemand) {
  EXPECT_EQ(Small().Encode("a", true), (Ids{0, 259}));
  EXPECT_EQ(Small().Encode("", true), (Ids{0}));
  EXPECT_EQ(Small().Encode("", false), (Ids{}));
}

TEST(Tokenizer, FallsBackToBytes) {
  EXPECT_EQ(Small().Encode("é€", false), (Ids{264, 229, 133, 175}));
  EXPECT_EQ(Small().Encode(std::string_view("\0", 1), false), (Ids{3}));
  // An invalid byte is U+FFFD: EF BF BD.
  EXPECT_EQ(Small().Encode("a\xff", false), (Ids{259, 3 + 0xef, 3 + 0xbf, 3 + 0xbd}));
}

TEST(Tokenizer, CutsAddedTokensFirst) {
  EXPECT_EQ(Small().Encode("<mark>a<stop>ab <stop", false),
            (Ids{2, 259, 1, 265, 263, 63, 118, 119, 114, 115}));
  EXPECT_EQ(Small().Encode("ab<bos>", false), (Ids{265, 0}));
}

TEST(Tokenizer, Decodes) {
  const Tokenizer tokenizer = Small();
  const auto decode = [&](const Ids& ids, bool skip) {
    return tokenizer.Decode(ids, skip).value();
  };
  EXPECT_EQ(decode({0, 1, 2, 269}, true), "<mark> a");
  EXPECT_EQ(decode({0, 1, 2, 269}, false), "<bos><stop><mark> a");
  EXPECT_EQ(decode({259, 229, 133, 175, 260}, true), "a€b");
  EXPECT_EQ(decode({229, 133, 260}, true), "\uFFFD\uFFFDb");
  EXPECT_EQ(decode({229, 133, 175, 258}, true), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(decode({229, 1, 133, 175}, true), "€");
  EXPECT_EQ(decode({229, 1, 133, 175}, false), "\uFFFD<stop>\uFFFD\uFFFD");
  const auto outside = tokenizer.Decode({270}, true);
  ASSERT_FALSE(outside.has_value());
  EXPECT_EQ(outside.error().message, "token id 270 is not in the vocabulary of 270 entries");
  EXPECT_FALSE(tokenizer.Decode({-1}, true).has_value());
}

TEST(Tokenizer, TellsAboutTokens) {
  const Tokenizer tokenizer = Small();
  EXPECT_EQ(tokenizer.vocab_size(), 270);
  EXPECT_EQ(tokenizer.bos_id(), 0);
  EXPECT_EQ(tokenizer.IdOf("abcd"), 267);
  EXPECT_EQ(tokenizer.IdOf("abc"), std::nullopt);
  EXPECT_EQ(tokenizer.TokenOf(263), "\u2581");
  EXPECT_EQ(tokenizer.ByteOf(3 + 0x41), 0x41);
  EXPECT_EQ(tokenizer.ByteOf(259), std::nullopt);
  EXPECT_TRUE(tokenizer.IsSpecial(1));
  EXPECT_FALSE(tokenizer.IsSpecial(2));
  EXPECT_FALSE(tokenizer.Contains(270));
}

TEST(Tokenizer, OpensTheTrainedModel) {
  const auto tokenizer = Tokenizer::Open(kTinyModel);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->vocab_size(), 1024);
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->Encode("a\n\n\nb    c", true), (Ids{2, 489, 109, 490, 140, 491}));
  EXPECT_EQ(tokenizer->Encode("<|turn>", false), (Ids{105}));
  const std::string text = "What is the capital of Turkey?";
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, true), true).value(), text);
}

TEST(Tokenizer, MissingFileNamesThePath) {
  const auto tokenizer = Tokenizer::Open("/nowhere/model");
  ASSERT_FALSE(tokenizer.has_value());
  EXPECT_NE(tokenizer.error().message.find("/nowhere/model"), std::string::npos);
}

}  // namespace
}  // namespace nibble::text
