// The byte strings of a tokenizer's tokens as one tree, shared by all grammars and requests.
//
// The tree's nodes stand in the order of a walk through it, each with the end of its part, so that
// a walk reads memory forwards and skips what cannot match. Special tokens are not in it, since no
// text contains them, but for the marks of calls and of the strings in them: they are spelled by
// bytes that no UTF-8 contains, so that a grammar can ask for them. Immutable. Tested by
// grammar_test.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace nibble::grammar {

inline constexpr uint8_t kQuoteMark = 0xFF;      // <|"|>
inline constexpr uint8_t kCallBeginMark = 0xFE;  // <|tool_call>
inline constexpr uint8_t kCallEndMark = 0xFD;    // <tool_call|>

class Vocabulary {
 public:
  struct TreeNode {
    uint32_t end = 0;      // behind the last node of its part
    int32_t tokens = -1;   // first of those that are spelled so far; -1: none
    uint16_t depth = 0;    // bytes so far
    uint16_t deepest = 0;  // of its part
    uint8_t byte = 0;      // the last one
    uint8_t n_tokens = 0;
  };

  // Errors: a byte of UTF-8 that no token spells alone, so that some texts cannot be written.
  static Result<Vocabulary> Make(const text::Tokenizer& tokenizer);
  // The same of the tokens' bytes by id; empty: a token that no text contains.
  static Result<Vocabulary> Make(std::vector<std::string> tokens);

  std::span<const TreeNode> tree() const { return tree_; }
  // The token's bytes; none if it is special and no mark, or not in the vocabulary.
  const std::string& BytesOf(int32_t id) const { return bytes_[static_cast<size_t>(id)]; }
  // Whether the tokenizer has all marks of calls.
  bool has_call_marks() const { return has_call_marks_; }
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  size_t n_words() const { return (bytes_.size() + 63) / 64; }
  // Sets the bits of the tokens that are spelled by the path to a node of the tree.
  void AddTokens(uint32_t node, std::span<uint64_t> words) const {
    for (int i = 0; i < tree_[node].n_tokens; ++i) {
      const auto id = static_cast<size_t>(token_ids_[tree_[node].tokens + i]);
      words[id / 64] |= uint64_t{1} << (id % 64);
    }
  }
  // Bits of the tokens of at most n_bytes, 0 to kMaxShort.
  static constexpr int64_t kMaxShort = 63;
  std::span<const uint64_t> UpTo(int64_t n_bytes) const {
    return std::span(up_to_).subspan(static_cast<size_t>(n_bytes) * n_words(), n_words());
  }

 private:
  std::vector<std::string> bytes_;  // by id
  std::vector<int32_t> token_ids_;  // by bytes, then by id
  std::vector<TreeNode> tree_;
  std::vector<uint64_t> up_to_;  // [kMaxShort + 1, n_words()]
  bool has_call_marks_ = false;
};

}  // namespace nibble::grammar
