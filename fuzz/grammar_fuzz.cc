// Any bytes as a JSON Schema, an expression or choices give an error or a grammar whose masks allow
// only tokens that it takes, in bounded time. Input: a byte that says which, a byte that seeds the
// walk, the text.
#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "grammar/grammar.h"

namespace {

using namespace nibble::grammar;

// Every byte as a token, and a few longer ones.
std::shared_ptr<const Vocabulary> MakeVocabulary() {
  nibble::Json vocab = {{"<bos>", 0}};
  int next = 1;
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = next++;
  for (const char* token : {"a", "ab", "\"", "\",", "\":", "{\"", "}}", "[[", "\\\"", "10", "null",
                            "true", "\u2581", "\u2581\u2581", "\n", "é", "日本"}) {
    vocab[token] = next++;
  }
  const nibble::Json file = {
      {"version", "1.0"},
      {"added_tokens",
       {{{"id", 0},
         {"content", "<bos>"},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}}}},
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}}}}}},
      {"model",
       {{"type", "BPE"},
        {"byte_fallback", true},
        {"vocab", vocab},
        {"merges", nibble::Json::array()}}}};
  const auto tokenizer = nibble::text::Tokenizer::Parse(file.dump(), "fuzz");
  CHECK(tokenizer.has_value());
  return std::make_shared<const Vocabulary>(*Vocabulary::Make(*tokenizer));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const Vocabulary> vocabulary = MakeVocabulary();
  if (size < 2 || size > 4096) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto grammar = data[0] % 3 == 0 ? Grammar::OfJsonSchema(text, vocabulary)
                       : data[0] % 3 == 1
                           ? Grammar::OfRegex(text, vocabulary)
                           : Grammar::OfChoice({text, text.substr(0, size / 2)}, vocabulary);
  if (!grammar.has_value()) {
    CHECK(grammar.error().message.find('\n') == std::string::npos);
    return 0;
  }
  const auto constraint = Grammar::NewConstraint(*grammar);
  std::mt19937 random(data[1]);
  std::vector<uint64_t> mask(vocabulary->n_words());
  std::string answer;
  for (int n = 0; n < 24; ++n) {
    if (constraint->is_complete()) CHECK((*grammar)->Accepts(answer));
    constraint->FillMask(mask);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < vocabulary->size(); ++id) {
      if ((mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) allowed.push_back(id);
    }
    if (allowed.empty()) break;
    const int32_t id = allowed[random() % allowed.size()];
    CHECK(!vocabulary->BytesOf(id).empty());
    constraint->Accept(id);
    answer += vocabulary->BytesOf(id);
  }
  return 0;
}
