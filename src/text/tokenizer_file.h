// The content of a Hugging Face tokenizer.json, checked: what Tokenizer is built from.
//
// Read by events rather than into a document: the real file holds 262,144 tokens and 514,906
// merges. Everything that would change ids or text and that Tokenizer does not do is an error
// naming the key and what stands there; so is a vocabulary that contradicts itself. Tested by
// tokenizer_file_test.cc and fuzz/tokenizer_fuzz.cc.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/bpe.h"

namespace nibble::text {

struct AddedToken {
  TokenId id;
  std::string content;
  bool special;
  bool normalized;  // looked for in the normalised text, not in the raw one
};

struct TokenizerFile {
  std::vector<std::string> tokens;                    // by id; "" where there is none
  std::unordered_map<std::string_view, TokenId> ids;  // views into `tokens`
  std::vector<MergeRule> merges;                      // by rank
  std::vector<TokenId> byte_tokens;                   // [256]
  std::vector<AddedToken> added_tokens;
  TokenId bos_id;
};

// `where` (a file name, say) begins error messages.
Result<TokenizerFile> ParseTokenizerFile(std::string_view json, std::string_view where);

// The same from what other files hold: tokens by id ("" where there is none), merges by rank as
// (left, right), added tokens among `tokens`.
Result<TokenizerFile> BuildTokenizerFile(
    std::vector<std::string> tokens, const std::vector<std::pair<std::string, std::string>>& merges,
    std::vector<AddedToken> added_tokens, std::string_view where);

}  // namespace nibble::text
