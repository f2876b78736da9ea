#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "fixture.h"
#include "text/utf8.h"

namespace nibble::text {
namespace {

TEST(Detokenizer, HoldsBackAnUnfinishedRunOfBytes) {
  const Tokenizer tokenizer = Small();
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.Push(0), "");  // special
  EXPECT_EQ(detokenizer.Push(269), " a");
  EXPECT_EQ(detokenizer.Push(kFirstByte + 0xe2), "");
  EXPECT_EQ(detokenizer.Push(kFirstByte + 0x82), "");
  EXPECT_EQ(detokenizer.Push(kFirstByte + 0xac), "");
  EXPECT_EQ(detokenizer.Push(260), "€b");
  EXPECT_EQ(detokenizer.Push(kFirstByte + 0xe2), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(Detokenizer, PiecesJoinToDecodeAndAreWholeCharacters) {
  const Tokenizer tokenizer = Small();
  std::mt19937 random(5);
  const std::vector<TokenId> pool = {0,   1,   2,   229, 133, 175, 198, 172, 258, 259,
                                     263, 264, 265, 267, 269, 3,   4,   13,  200, 128};
  for (int round = 0; round < 2000; ++round) {
    std::vector<TokenId> ids(std::uniform_int_distribution<size_t>(0, 12)(random));
    for (TokenId& id : ids) id = pool[std::uniform_int_distribution<size_t>(0, 19)(random)];
    Detokenizer detokenizer(tokenizer);
    std::string joined;
    for (const TokenId id : ids) {
      const std::string piece = detokenizer.Push(id);
      ASSERT_TRUE(IsValidUtf8(piece));
      joined += piece;
    }
    joined += detokenizer.Flush();
    ASSERT_EQ(joined, tokenizer.Decode(ids, true).value());
  }
}

}  // namespace
}  // namespace nibble::text
