#include "text/detokenizer.h"

#include <optional>
#include <string_view>

#include "text/utf8.h"

namespace nibble::text {

std::string Detokenizer::Push(TokenId id) {
  if (!tokenizer_->Contains(id) || (skip_special_ && tokenizer_->IsSpecial(id))) return "";
  if (const std::optional<uint8_t> byte = tokenizer_->ByteOf(id)) {
    byte_run_ += static_cast<char>(*byte);
    return "";
  }
  constexpr std::string_view kMark = "\u2581";
  std::string text = Flush();
  const std::string_view token = tokenizer_->TokenOf(id);
  for (size_t i = 0; i < token.size();) {
    if (token.substr(i).starts_with(kMark)) {
      text += ' ';
      i += kMark.size();
    } else {
      text += token[i++];
    }
  }
  return text;
}

std::string Detokenizer::Flush() {
  std::string text;
  if (IsValidUtf8(byte_run_)) {
    text = std::move(byte_run_);
  } else {
    for (size_t i = 0; i < byte_run_.size(); ++i) text += kReplacement;
  }
  byte_run_.clear();
  return text;
}

std::string Detokenizer::FlushWhole() {
  size_t i = 0;
  while (i < byte_run_.size()) {
    const Character character = CharacterAt(byte_run_, i);
    if (!character.valid) break;
    i += character.n_bytes;
  }
  // Its first byte announces more than there are.
  if (i < byte_run_.size()) {
    const auto first = static_cast<uint8_t>(byte_run_[i]);
    const bool is_cut = i + CharacterAt(byte_run_, i).n_bytes == byte_run_.size();
    if (is_cut && first >= 0xc2 && first < 0xf5) byte_run_.resize(i);
  }
  return Flush();
}

}  // namespace nibble::text
