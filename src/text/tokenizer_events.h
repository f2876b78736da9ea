// tokenizer.json as JSON events: vocabulary and merges into flat arrays, all else into a small
// document. Says nothing about what the document means; tokenizer_file.cc does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace nibble::text {

struct TokenizerEvents {
  Json rest;  // the document; model.vocab and model.merges are null in it
  std::vector<std::pair<std::string, int64_t>> vocab;       // in file order
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
};

Result<TokenizerEvents> ReadTokenizerEvents(std::string_view json, std::string_view where);

}  // namespace nibble::text
