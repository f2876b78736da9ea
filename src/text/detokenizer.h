// Text of a growing sequence of tokens, piece by piece, always whole UTF-8 characters: what streams
// print. The pieces joined are what Tokenizer::Decode gives for all ids.
//
// A run of byte tokens is held back until it ends, since an invalid byte at its end turns the whole
// run into U+FFFD in the reference; special tokens that are left out do not end a run. Tested by
// detokenizer_test.cc.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace nibble::text {

class Detokenizer {
 public:
  // `tokenizer` must outlive this object.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that became certain with this token: "" inside a run of byte tokens, and for an id
  // that is not in the vocabulary.
  std::string Push(TokenId id);
  // What is held back, at the end.
  std::string Flush();
  // The same where generation was cut: without a character of which only the first bytes came.
  std::string FlushWhole();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string byte_run_;
};

}  // namespace nibble::text
