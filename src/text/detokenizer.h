// Text of a growing sequence of tokens, piece by piece, never splitting a UTF-8 character: what
// streams print. The pieces joined are what Tokenizer::Decode(all ids, skip_special = true) gives.
// Tested by detokenizer_test.cc.
#pragma once

#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace nibble::text {

class Detokenizer {
 public:
  // `tokenizer` must outlive this object.
  explicit Detokenizer(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // The text that became certain with this token: "" while a character is incomplete.
  std::string Push(TokenId id);
  // What is held back, at the end (an incomplete character becomes U+FFFD).
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_bytes_;  // of byte tokens that do not complete a character yet
};

}  // namespace nibble::text
