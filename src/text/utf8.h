// UTF-8, one character at a time. Invalid bytes are grouped as Python's decode(errors="replace")
// and the Unicode standard do: one U+FFFD for each maximal subpart of a character.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nibble::text {

inline constexpr std::string_view kReplacement = "\uFFFD";

struct Character {
  char32_t code_point;  // U+FFFD if !valid
  size_t n_bytes;       // >= 1
  bool valid;
};

// The character that begins at `offset` < bytes.size().
Character CharacterAt(std::string_view bytes, size_t offset);

bool IsValidUtf8(std::string_view bytes);

// `bytes` with every invalid maximal subpart replaced by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view bytes);

// `text` without white space at both ends, in the sense of Python's str.strip().
std::string_view StripWhitespace(std::string_view text);

}  // namespace nibble::text
