// Byte-pair merging over a whole text, as the `tokenizers` library does it.
//
// Simplest form: start from one token a character; as long as some neighbours form a known merge,
// merge the pair of the lowest rank, the leftmost first. A heap of candidate merges over a linked
// list of tokens makes that O(n log n).
//
// For speed the text is first cut wherever no merge can ever reach across: a merge (L, R) that
// reaches across the place between characters x and y needs L ending in x and R beginning with y,
// so a place whose (x, y) occurs in no merge is final. In Gemma's vocabulary this cuts at most word
// borders; the pieces are independent, hence the ids are those of the whole text.
//
// Characters that are not in the vocabulary become one byte token a byte. Immutable once built;
// thread-safe. Tested by bpe_test.cc against the simplest form and by tests/interop.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/pair_map.h"

namespace nibble::text {

using TokenId = int32_t;

// left + right -> merged; ranks are the places in the list of merges.
struct MergeRule {
  TokenId left;
  TokenId right;
  TokenId merged;
};

// What merging needs to know about the vocabulary.
struct BpeVocabulary {
  std::vector<std::string_view> tokens;  // by id; "" where there is none
  std::vector<MergeRule> merges;         // by rank
  std::vector<TokenId> byte_tokens;      // [256]
};

class Bpe {
 public:
  // Keeps no reference to `vocabulary`.
  explicit Bpe(const BpeVocabulary& vocabulary);

  // Appends the ids of `text`, which must be valid UTF-8.
  void Encode(std::string_view text, std::vector<TokenId>* ids) const;

 private:
  struct Symbol;
  struct Candidate;
  struct Scratch;

  TokenId CharacterId(char32_t code_point) const;
  void FindCuts(const BpeVocabulary& vocabulary);
  void MergeSegment(Scratch* scratch, std::vector<TokenId>* ids) const;

  std::vector<TokenId> character_ids_;  // by code point; -1 where the vocabulary has none
  std::vector<TokenId> byte_tokens_;    // [256]
  std::vector<TokenId> merged_;         // by rank
  PairMap ranks_;                       // (left, right) -> rank
  PairMap joinable_{0};                 // (character, next character) that some merge may join
  bool can_cut_ = true;
};

}  // namespace nibble::text
