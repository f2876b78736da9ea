#include "text/utf8.h"

#include <cstdint>

namespace nibble::text {
namespace {

// What str.isspace() accepts.
bool IsWhitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

}  // namespace

// The well-formed byte sequences are those of the Unicode standard, table 3-7: only the second
// byte's range depends on the first byte.
Character CharacterAt(std::string_view bytes, size_t offset) {
  const auto byte_at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = byte_at(offset);
  if (first < 0x80) return {first, 1, true};
  const size_t n_bytes = first < 0xc2   ? 0
                         : first < 0xe0 ? 2
                         : first < 0xf0 ? 3
                         : first < 0xf5 ? 4
                                        : 0;
  if (n_bytes == 0) return {0xfffd, 1, false};
  uint8_t low = 0x80;
  uint8_t high = 0xbf;
  if (first == 0xe0) low = 0xa0;   // shorter forms exist
  if (first == 0xed) high = 0x9f;  // surrogates
  if (first == 0xf0) low = 0x90;
  if (first == 0xf4) high = 0x8f;  // past U+10FFFF
  char32_t code_point = first & (0x7fu >> n_bytes);
  for (size_t i = 1; i < n_bytes; ++i) {
    if (offset + i == bytes.size()) return {0xfffd, i, false};
    const uint8_t next = byte_at(offset + i);
    if (next < low || next > high) return {0xfffd, i, false};
    code_point = (code_point << 6) | (next & 0x3fu);
    low = 0x80;
    high = 0xbf;
  }
  return {code_point, n_bytes, true};
}

bool IsValidUtf8(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const Character character = CharacterAt(bytes, i);
    if (!character.valid) return false;
    i += character.n_bytes;
  }
  return true;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (size_t i = 0; i < bytes.size();) {
    const Character character = CharacterAt(bytes, i);
    text += character.valid ? bytes.substr(i, character.n_bytes) : kReplacement;
    i += character.n_bytes;
  }
  return text;
}

std::string_view StripWhitespace(std::string_view text) {
  size_t begin = 0;
  size_t end = 0;  // past the last character that is no white space
  bool seen = false;
  for (size_t i = 0; i < text.size();) {
    const Character character = CharacterAt(text, i);
    const size_t next = i + character.n_bytes;
    if (!IsWhitespace(character.code_point)) {
      if (!seen) begin = i;
      seen = true;
      end = next;
    }
    i = next;
  }
  return seen ? text.substr(begin, end - begin) : std::string_view();
}

}  // namespace nibble::text
