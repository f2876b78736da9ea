// The fast merging against the simplest form of the same rule, on random vocabularies.
#include "text/bpe.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace nibble::text {
namespace {

struct Rules {
  std::vector<std::string> tokens;
  BpeVocabulary vocabulary;
};

// Letters a..e as tokens, byte tokens, and random merges; the first token of each spelling counts.
Rules RandomRules(std::mt19937* random) {
  Rules rules;
  for (int byte = 0; byte < 256; ++byte) rules.tokens.push_back(fmt::format("<{}>", byte));
  std::map<std::string, TokenId> ids;
  const auto id_of = [&](const std::string& token) {
    const auto [entry, fresh] = ids.emplace(token, static_cast<TokenId>(rules.tokens.size()));
    if (fresh) rules.tokens.push_back(token);
    return entry->second;
  };
  for (const char* letter : {"a", "b", "c", "d", "e"}) id_of(letter);
  std::map<std::pair<TokenId, TokenId>, bool> known;
  const int n_merges = std::uniform_int_distribution(0, 30)(*random);
  for (int i = 0; i < n_merges; ++i) {
    std::uniform_int_distribution<size_t> any(256, rules.tokens.size() - 1);
    const auto left = static_cast<TokenId>(any(*random));
    const auto right = static_cast<TokenId>(any(*random));
    if (!known.emplace(std::pair(left, right), true).second) continue;
    const TokenId merged = id_of(rules.tokens[left] + rules.tokens[right]);
    rules.vocabulary.merges.push_back({left, right, merged});
  }
  rules.vocabulary.tokens.assign(rules.tokens.begin(), rules.tokens.end());
  for (TokenId byte = 0; byte < 256; ++byte) rules.vocabulary.byte_tokens.push_back(byte);
  return rules;
}

std::vector<TokenId> Simplest(const Rules& rules, const std::string& text) {
  std::vector<TokenId> ids;
  for (const char c : text) {
    ids.push_back(c >= 'a' && c <= 'e' ? 256 + (c - 'a') : static_cast<TokenId>(c));
  }
  const auto& merges = rules.vocabulary.merges;
  while (true) {
    size_t best_rank = merges.size();
    size_t best_place = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) {
          best_rank = rank;
          best_place = i;
        }
      }
    }
    if (best_rank == merges.size()) return ids;
    ids[best_place] = merges[best_rank].merged;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best_place) + 1);
  }
}

// Merges that reach one spelling in several ways are left out here: there the reference follows its
// queue rather than the rule, and tests/interop compares with the reference itself.
bool HasOneWayToEach(const Rules& rules) {
  std::map<TokenId, int> n_ways;
  for (const MergeRule& merge : rules.vocabulary.merges) {
    if (++n_ways[merge.merged] > 1) return false;
  }
  return true;
}

TEST(Bpe, EqualsTheSimplestForm) {
  std::mt19937 random(1);
  int n_compared = 0;
  for (int round = 0; round < 600; ++round) {
    const Rules rules = RandomRules(&random);
    if (!HasOneWayToEach(rules)) continue;
    const Bpe bpe(rules.vocabulary);
    for (int n = 0; n < 40; ++n) {
      std::string text(std::uniform_int_distribution<size_t>(0, 24)(random), 'a');
      for (char& c : text) c = "aabbcdex"[std::uniform_int_distribution(0, 7)(random)];
      std::vector<TokenId> ids;
      bpe.Encode(text, &ids);
      ASSERT_EQ(ids, Simplest(rules, text)) << text;
      ++n_compared;
    }
  }
  EXPECT_GT(n_compared, 1000);
}

TEST(Bpe, LongRunTakesNoQuadraticTime) {
  Rules rules;
  for (int byte = 0; byte < 256; ++byte) rules.tokens.push_back(fmt::format("<{}>", byte));
  for (const char* token : {"a", "aa", "aaaa"}) rules.tokens.emplace_back(token);
  rules.vocabulary.tokens.assign(rules.tokens.begin(), rules.tokens.end());
  rules.vocabulary.merges = {{256, 256, 257}, {257, 257, 258}};
  for (TokenId byte = 0; byte < 256; ++byte) rules.vocabulary.byte_tokens.push_back(byte);
  std::vector<TokenId> ids;
  Bpe(rules.vocabulary).Encode(std::string(400'003, 'a'), &ids);
  ASSERT_EQ(ids.size(), 100'002u);  // 100,000 of four, then aa, a
  EXPECT_EQ(ids[99'999], 258);
  EXPECT_EQ(ids[100'000], 257);
  EXPECT_EQ(ids[100'001], 256);
}

}  // namespace
}  // namespace nibble::text
