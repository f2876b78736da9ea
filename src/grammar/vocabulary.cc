#include "grammar/vocabulary.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "text/chat_value.h"

namespace nibble::grammar {
namespace {

constexpr size_t kMaxTokenBytes = 4096;  // longer ones are never chosen
constexpr size_t kMaxSameTokens = 255;
constexpr uint8_t kFirstBeyondUtf8 = 0xF5;

std::string TextOf(const text::Tokenizer& tokenizer, int32_t id) {
  if (!tokenizer.Contains(id)) return "";
  if (const std::optional<uint8_t> byte = tokenizer.ByteOf(id)) {
    return *byte < kFirstBeyondUtf8 ? std::string(1, static_cast<char>(*byte)) : "";
  }
  const std::string_view token = tokenizer.TokenOf(id);
  if (token == text::kQuote) return {static_cast<char>(kQuoteMark)};
  if (token == "<|tool_call>") return {static_cast<char>(kCallBeginMark)};
  if (token == "<tool_call|>") return {static_cast<char>(kCallEndMark)};
  if (tokenizer.IsSpecial(id)) return "";
  constexpr std::string_view kBlank = "\u2581";
  std::string text;
  for (size_t i = 0; i < token.size();) {
    const bool is_blank = token.substr(i).starts_with(kBlank);
    text += is_blank ? ' ' : token[i];
    i += is_blank ? kBlank.size() : 1;
  }
  return text.size() <= kMaxTokenBytes ? text : "";
}

}  // namespace

Result<Vocabulary> Vocabulary::Make(const text::Tokenizer& tokenizer) {
  std::vector<std::string> tokens;
  tokens.reserve(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) tokens.push_back(TextOf(tokenizer, id));
  return Make(std::move(tokens));
}

Result<Vocabulary> Vocabulary::Make(std::vector<std::string> tokens) {
  Vocabulary vocabulary;
  vocabulary.bytes_ = std::move(tokens);
  std::array<bool, 256> is_spelled = {};
  for (size_t id = 0; id < vocabulary.bytes_.size(); ++id) {
    const std::string& token = vocabulary.bytes_[id];
    if (token.size() == 1) is_spelled[static_cast<uint8_t>(token[0])] = true;
    if (!token.empty()) vocabulary.token_ids_.push_back(static_cast<int32_t>(id));
  }
  const auto utf8 = std::span(is_spelled).first(kFirstBeyondUtf8);
  const auto unspelled = std::ranges::find(utf8, false);
  if (unspelled != utf8.end()) {
    return Fail("vocabulary: no token for the byte {:#04x}", unspelled - utf8.begin());
  }
  vocabulary.has_call_marks_ =
      is_spelled[kQuoteMark] && is_spelled[kCallBeginMark] && is_spelled[kCallEndMark];
  const std::vector<std::string>& bytes = vocabulary.bytes_;
  std::ranges::stable_sort(vocabulary.token_ids_, {},
                           [&](int32_t id) -> const std::string& { return bytes[id]; });
  // Each token adds what is new in it behind what it has in common with the one before.
  std::vector<TreeNode>& tree = vocabulary.tree_;
  std::vector<uint32_t> path;  // nodes from the root to the last one
  const auto close = [&](size_t depth) {
    while (path.size() > depth) {
      TreeNode& node = tree[path.back()];
      node.end = static_cast<uint32_t>(tree.size());
      path.pop_back();
      if (path.empty()) continue;
      TreeNode& parent = tree[path.back()];
      parent.deepest = std::max(parent.deepest, node.deepest);
    }
  };
  std::string_view previous;
  for (size_t i = 0; i < vocabulary.token_ids_.size(); ++i) {
    const std::string_view own = bytes[vocabulary.token_ids_[i]];
    const auto common = std::ranges::mismatch(previous, own).in1 - previous.begin();
    close(static_cast<size_t>(common));
    for (size_t depth = path.size(); depth < own.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(tree.size()));
      const auto n_bytes = static_cast<uint16_t>(depth + 1);
      tree.push_back(
          {.depth = n_bytes, .deepest = n_bytes, .byte = static_cast<uint8_t>(own[depth])});
    }
    TreeNode& node = tree[path.back()];
    if (node.n_tokens == 0) node.tokens = static_cast<int32_t>(i);
    if (node.n_tokens < kMaxSameTokens) ++node.n_tokens;
    previous = own;
  }
  close(0);
  vocabulary.up_to_.resize((kMaxShort + 1) * vocabulary.n_words());
  for (const int32_t id : vocabulary.token_ids_) {
    for (size_t n = bytes[id].size(); n <= kMaxShort; ++n) {
      vocabulary.up_to_[n * vocabulary.n_words() + static_cast<size_t>(id) / 64] |= uint64_t{1}
                                                                                    << (id % 64);
    }
  }
  return vocabulary;
}

}  // namespace nibble::grammar
