#include "text/added_tokens.h"

#include <cstdint>

namespace nibble::text {
namespace {

size_t TotalBytes(const std::vector<std::pair<std::string_view, TokenId>>& tokens) {
  size_t n_bytes = 0;
  for (const auto& [content, id] : tokens) n_bytes += content.size();
  return n_bytes;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<std::pair<std::string_view, TokenId>>& tokens)
    : children_(TotalBytes(tokens)), id_at_(1, -1), begins_(256) {
  for (const auto& [content, id] : tokens) {
    begins_[static_cast<uint8_t>(content.front())] = true;
    uint32_t node = 0;
    for (const char c : content) {
      const auto parent = static_cast<int32_t>(node);
      node = children_.Find(parent, static_cast<uint8_t>(c));
      if (node != PairMap::kNone) continue;
      node = static_cast<uint32_t>(id_at_.size());
      children_.Set(parent, static_cast<uint8_t>(c), node);
      id_at_.push_back(-1);
    }
    id_at_[node] = id;
  }
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::Find(std::string_view text,
                                                              size_t offset) const {
  for (size_t begin = offset; begin < text.size(); ++begin) {
    if (!begins_[static_cast<uint8_t>(text[begin])]) continue;
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      node = children_.Find(static_cast<int32_t>(node), static_cast<uint8_t>(text[i]));
      if (node == PairMap::kNone) break;
      if (id_at_[node] >= 0) longest = Match{begin, i + 1 - begin, id_at_[node]};
    }
    if (longest.has_value()) return longest;
  }
  return std::nullopt;
}

}  // namespace nibble::text
