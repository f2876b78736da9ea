// Gemma's tokenizer as the arrays that a GGUF file holds, and back.
//
// tokenizer.ggml.tokens lists every id, .token_type says what each is, .merges is "left right" by
// rank; normaliser, pre-tokenizer and decoder are implied by tokenizer.ggml.model = "gemma4".
// What a file cannot say: that a token is looked for in the normalised text. Source: llama.cpp,
// src/llama-vocab.cpp. Tested by gguf_vocabulary_test.cc and tests/interop/test_gguf.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer_file.h"

namespace nibble::text {

// llama.cpp's numbers.
enum class GgufTokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,      // as kControl
  kControl = 3,      // an added token that texts do not show
  kUserDefined = 4,  // an added token that they do
  kUnused = 5,       // an id without a token
  kByte = 6,
};

struct GgufVocabulary {
  std::vector<std::string> tokens;  // by id
  std::vector<int32_t> types;       // GgufTokenType, by id
  std::vector<std::string> merges;  // by rank
};

// `n_rows`: ids that the model has, for which readers want a token each: "[PAD17]" where there is
// none. The tokens of calls, thoughts and strings are user-defined even where tokenizer.json calls
// them special, so that a server sees them in the text and can parse it. Error if the tokenizer has
// more ids than that, or a merge of a token with a space.
Result<GgufVocabulary> ToGgufVocabulary(const TokenizerFile& file, int n_rows,
                                        std::string_view where);

// Error as of ParseTokenizerFile, if the arrays differ in length, or if a merge is not two tokens.
Result<TokenizerFile> FromGgufVocabulary(const GgufVocabulary& vocabulary, std::string_view where);

}  // namespace nibble::text
