// Gemma's tokenizer, read from a Hugging Face tokenizer.json: BPE with byte fallback over the whole
// text.
//
// Encoding: added tokens are cut from the raw text first (longest at a place), the rest is
// normalised
// (" " -> U+2581), split into characters, and merged by rank; characters outside the vocabulary
// become byte tokens. Decoding reverses it: U+2581 -> " ", a run of byte tokens is UTF-8, or one
// U+FFFD a byte if the run as a whole is not valid. Identical to the `tokenizers` library on the
// same file; anything in the file that this does not implement is an error naming the key. Where
// other programs differ from that library (llama.cpp on accents, for one), the library is right.
//
// Immutable, hence thread-safe. Tested by tokenizer_test.cc and tests/interop against `tokenizers`.
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

struct TokenizerFile;

class Tokenizer {
 public:
  // Reads DIR/tokenizer.json (or the file itself).
  static Result<Tokenizer> Open(const std::filesystem::path& path);
  // The content of such a file; `where` begins error messages.
  static Result<Tokenizer> Parse(std::string_view json, std::string_view where);
  explicit Tokenizer(TokenizerFile file);

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
  bool Contains(TokenId id) const;
  // The token as the vocabulary spells it. `id` must be in the vocabulary.
  std::string_view TokenOf(TokenId id) const;
  // The byte that a byte token stands for. `id` must be in the vocabulary.
  std::optional<uint8_t> ByteOf(TokenId id) const;
  // Whether decoding may leave the token out. `id` must be in the vocabulary.
  bool IsSpecial(TokenId id) const;
  TokenId bos_id() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::text
