// Finds added tokens in a text: the leftmost match, and the longest one there, as the `tokenizers`
// library does. A byte trie. Tested by added_tokens_test.cc.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "text/bpe.h"
#include "text/pair_map.h"

namespace nibble::text {

class AddedTokenFinder {
 public:
  // Different, non-empty contents. Keeps no reference to them.
  explicit AddedTokenFinder(const std::vector<std::pair<std::string_view, TokenId>>& tokens);

  struct Match {
    size_t offset;
    size_t n_bytes;
    TokenId id;
  };
  // The first match that begins at or after `offset`.
  std::optional<Match> Find(std::string_view text, size_t offset) const;

 private:
  PairMap children_;            // (node, byte) -> node; node 0 is the root
  std::vector<TokenId> id_at_;  // by node; -1: no token ends here
  std::vector<bool> begins_;    // [256]: some token begins with this byte
};

}  // namespace nibble::text
