#include "grammar/characters.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace nibble::grammar {
namespace {

constexpr char32_t kLast = 0x10FFFF;
constexpr char32_t kLastBeforeSurrogates = 0xD7FF;
constexpr char32_t kFirstBehindSurrogates = 0xE000;

std::string Utf8(char32_t c) {
  const auto byte = [](char32_t value) { return static_cast<char>(value); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | (c >> 6)), byte(0x80 | (c & 0x3F))};
  if (c < 0x10000) {
    return {byte(0xE0 | (c >> 12)), byte(0x80 | ((c >> 6) & 0x3F)), byte(0x80 | (c & 0x3F))};
  }
  return {byte(0xF0 | (c >> 18)), byte(0x80 | ((c >> 12) & 0x3F)), byte(0x80 | ((c >> 6) & 0x3F)),
          byte(0x80 | (c & 0x3F))};
}

// Adds ranges of characters between two nodes.
class Utf8Adder {
 public:
  Utf8Adder(ProgramBuilder& builder, NodeId from, NodeId to)
      : builder_(builder), from_(from), tails_{to} {}

  void Add(CharacterRange range) {
    for (const auto& [first, last] :
         {CharacterRange{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, kLast}}) {
      const char32_t low = std::max(first, range.first);
      const char32_t high = std::min(last, range.last);
      if (low <= high) AddSameLength(low, high);
    }
  }

 private:
  // Characters whose UTF-8 has the same length: cut until every byte of a piece runs through a
  // range of its own.
  void AddSameLength(char32_t first, char32_t last) {
    for (const int shift : {6, 12, 18}) {
      const char32_t below = (char32_t{1} << shift) - 1;
      if (last < 0x80 || (first & ~below) == (last & ~below)) break;
      if ((first & below) != 0) {
        AddSameLength(first, first | below);
        AddSameLength((first | below) + 1, last);
        return;
      }
      if ((last & below) != below) {
        AddSameLength(first, (last & ~below) - 1);
        AddSameLength(last & ~below, last);
        return;
      }
    }
    const std::string low = Utf8(first);
    const std::string high = Utf8(last);
    // Bytes at the end that may be any continuation go through nodes that all pieces share.
    size_t n_any = 0;
    while (n_any + 1 < low.size() && low[low.size() - 1 - n_any] == '\x80' &&
           high[low.size() - 1 - n_any] == '\xBF') {
      ++n_any;
    }
    NodeId from = from_;
    for (size_t i = 0; i + n_any < low.size(); ++i) {
      const bool is_last = i + n_any + 1 == low.size();
      const NodeId next = is_last ? Tail(n_any) : builder_.NewNode();
      builder_.Bytes(from, static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i]), next);
      from = next;
    }
  }

  // From where n continuation bytes lead to the end.
  NodeId Tail(size_t n) {
    while (tails_.size() <= n) {
      const NodeId tail = builder_.NewNode();
      builder_.Bytes(tail, 0x80, 0xBF, tails_.back());
      tails_.push_back(tail);
    }
    return tails_[n];
  }

  ProgramBuilder& builder_;
  NodeId from_;
  std::vector<NodeId> tails_;
};

bool NeedsEscape(char32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

std::string Escape(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  }
}

}  // namespace

CharacterSet::CharacterSet(std::vector<CharacterRange> ranges) {
  std::ranges::sort(ranges, {}, &CharacterRange::first);
  const auto add = [this](char32_t first, char32_t last) {
    if (first > last) return;
    if (!ranges_.empty() && first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, last);
    } else {
      ranges_.push_back({first, last});
    }
  };
  for (const auto& [first, last] : ranges) {
    add(first, std::min(last, kLastBeforeSurrogates));
    add(std::max(first, kFirstBehindSurrogates), std::min(last, kLast));
  }
}

CharacterSet CharacterSet::All() { return CharacterSet({{0, kLast}}); }

CharacterSet CharacterSet::operator~() const {
  std::vector<CharacterRange> rest;
  char32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) rest.push_back({next, first - 1});
    next = last + 1;
  }
  if (next <= kLast) rest.push_back({next, kLast});
  return CharacterSet(std::move(rest));
}

CharacterSet CharacterSet::operator|(const CharacterSet& other) const {
  std::vector<CharacterRange> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CharacterSet(std::move(both));
}

NodeId AddCharacter(ProgramBuilder& builder, NodeId from, const CharacterSet& set,
                    Spelling spelling) {
  const NodeId to = builder.NewNode();
  Utf8Adder adder(builder, from, to);
  for (const CharacterRange& range : set.ranges()) {
    char32_t first = range.first;
    for (char32_t c = first; spelling == Spelling::kJson && c <= range.last && c <= '\\'; ++c) {
      if (!NeedsEscape(c)) continue;
      if (first < c) adder.Add({first, c - 1});
      builder.Empty(builder.Literal(from, Escape(c)), to);
      first = c + 1;
    }
    if (first <= range.last) adder.Add({first, range.last});
  }
  return to;
}

}  // namespace nibble::grammar
