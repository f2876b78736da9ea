// Gemma's tokenizer, read from a Hugging Face tokenizer.json: BPE with byte fallback over the whole
// text.
//
// Encoding: added tokens are cut from the raw text first (longest at a place), the rest is
// normalised
// (" " -> U+2581), split into characters, and merged by rank; characters outside the vocabulary
// become byte tokens. Decoding reverses it: U+2581 -> " ", runs of byte tokens joined as UTF-8
// (invalid ones U+FFFD). Identical to the `tokenizers` library on the same file; anything in the
// file that this does not implement is an error naming the key. Tested by tokenizer_test.cc and
// tests/interop against `tokenizers`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nibble::text {

using TokenId = int32_t;

class Tokenizer {
 public:
  // Reads DIR/tokenizer.json (or the file itself).
  static Result<Tokenizer> Open(const std::filesystem::path& path);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // `add_bos`: put <bos> in front, as the post-processor does. Special tokens written in `text`
  // become their ids, as in the reference. Invalid UTF-8 bytes count as U+FFFD each maximal
  // subpart.
  std::vector<TokenId> Encode(std::string_view text, bool add_bos) const;

  // Text of the ids; special tokens are left out if `skip_special`. Ids outside the vocabulary are
  // an error.
  Result<std::string> Decode(const std::vector<TokenId>& ids, bool skip_special) const;

  int vocab_size() const;  // one past the largest id
  std::optional<TokenId> IdOf(std::string_view token) const;
  // The token as the vocabulary spells it. `id` must be in the vocabulary.
  std::string_view TokenOf(TokenId id) const;
  bool IsSpecial(TokenId id) const;
  TokenId bos_id() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::text
