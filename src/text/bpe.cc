#include "text/bpe.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"

namespace nibble::text {

struct Bpe::Symbol {
  TokenId id;
  int32_t previous;   // -1 at the beginning
  int32_t next;       // -1 at the end
  TokenId with_next;  // what this and the next one merge to; -1: nothing, or this one is gone
};

struct Bpe::Candidate {
  uint32_t rank;
  int32_t symbol_idx;  // of the left one
  // For a max-heap: the lowest rank, then the leftmost, comes first.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : symbol_idx > other.symbol_idx;
  }
};

// What merging a segment works on; kept between segments for its memory.
struct Bpe::Scratch {
  std::vector<TokenId> segment;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

Bpe::Bpe(const BpeVocabulary& vocabulary)
    : byte_tokens_(vocabulary.byte_tokens), ranks_(vocabulary.merges.size()) {
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string_view token = vocabulary.tokens[id];
    if (token.empty()) continue;
    const Character character = CharacterAt(token, 0);
    if (character.n_bytes != token.size()) continue;
    if (character.code_point >= character_ids_.size()) {
      character_ids_.resize(character.code_point + 1, -1);
    }
    character_ids_[character.code_point] = static_cast<TokenId>(id);
  }
  merged_.reserve(vocabulary.merges.size());
  for (const MergeRule& merge : vocabulary.merges) {
    ranks_.Set(merge.left, merge.right, static_cast<uint32_t>(merged_.size()));
    merged_.push_back(merge.merged);
  }
  FindCuts(vocabulary);
}

void Bpe::FindCuts(const BpeVocabulary& vocabulary) {
  std::vector<bool> is_byte(vocabulary.tokens.size());
  for (const TokenId id : byte_tokens_) is_byte[static_cast<size_t>(id)] = true;
  std::vector<std::pair<TokenId, TokenId>> pairs;
  for (const MergeRule& merge : vocabulary.merges) {
    const auto left_id = static_cast<size_t>(merge.left);
    const auto right_id = static_cast<size_t>(merge.right);
    // The spelling of a byte token does not tell which characters it may stand for.
    if (is_byte[left_id] || is_byte[right_id]) can_cut_ = false;
    const std::string_view left = vocabulary.tokens[left_id];
    size_t last = left.size() - 1;
    while (last > 0 && (static_cast<uint8_t>(left[last]) & 0xc0u) == 0x80u) --last;
    const TokenId x = CharacterId(CharacterAt(left, last).code_point);
    const TokenId y = CharacterId(CharacterAt(vocabulary.tokens[right_id], 0).code_point);
    // A token with a character outside the vocabulary can never arise.
    if (x >= 0 && y >= 0) pairs.emplace_back(x, y);
  }
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  joinable_ = PairMap(pairs.size());
  for (const auto& [x, y] : pairs) joinable_.Set(x, y, 1);
}

TokenId Bpe::CharacterId(char32_t code_point) const {
  return code_point < character_ids_.size() ? character_ids_[code_point] : -1;
}

void Bpe::Encode(std::string_view text, std::vector<TokenId>* ids) const {
  Scratch scratch;
  std::vector<TokenId>& segment = scratch.segment;
  const auto add = [&](TokenId id) {
    if (can_cut_ && !segment.empty() && joinable_.Find(segment.back(), id) == PairMap::kNone) {
      MergeSegment(&scratch, ids);
      segment.clear();
    }
    segment.push_back(id);
  };
  for (size_t i = 0; i < text.size();) {
    const Character character = CharacterAt(text, i);
    const TokenId id = CharacterId(character.code_point);
    if (id >= 0) {
      add(id);
    } else {
      for (size_t k = 0; k < character.n_bytes; ++k) {
        add(byte_tokens_[static_cast<uint8_t>(text[i + k])]);
      }
    }
    i += character.n_bytes;
  }
  MergeSegment(&scratch, ids);
}

void Bpe::MergeSegment(Scratch* scratch, std::vector<TokenId>* ids) const {
  const std::vector<TokenId>& segment = scratch->segment;
  if (segment.size() < 2) {
    ids->insert(ids->end(), segment.begin(), segment.end());
    return;
  }
  const auto n_symbols = static_cast<int32_t>(segment.size());
  std::vector<Symbol>& symbols = scratch->symbols;
  std::vector<Candidate>& heap = scratch->heap;
  symbols.resize(segment.size());
  const auto consider = [&](int32_t i) {  // the pair of symbol i and the next one
    Symbol& symbol = symbols[i];
    const uint32_t rank =
        symbol.next < 0 ? PairMap::kNone : ranks_.Find(symbol.id, symbols[symbol.next].id);
    symbol.with_next = rank == PairMap::kNone ? -1 : merged_[rank];
    if (rank == PairMap::kNone) return;
    heap.push_back({rank, i});
    std::push_heap(heap.begin(), heap.end());
  };
  for (int32_t i = 0; i < n_symbols; ++i) {
    symbols[i] = {segment[i], i - 1, i + 1 < n_symbols ? i + 1 : -1, -1};
  }
  for (int32_t i = 0; i < n_symbols; ++i) consider(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[best.symbol_idx];
    // Outdated if its pair has changed since. The reference compares what the pair merges to, not
    // its rank: kept, since another pair with the same result may stand here now.
    if (left.with_next != merged_[best.rank]) continue;
    Symbol& right = symbols[left.next];
    left.id = left.with_next;
    left.next = right.next;
    right.with_next = -1;
    if (left.next >= 0) symbols[left.next].previous = best.symbol_idx;
    if (left.previous >= 0) consider(left.previous);
    consider(best.symbol_idx);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids->push_back(symbols[i].id);
}

}  // namespace nibble::text
