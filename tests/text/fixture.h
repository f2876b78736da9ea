// A small tokenizer.json made by hand, and the trained model's one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/tokenizer.h"

namespace nibble::text {

inline const std::string kTinyModel = NIBBLE_SOURCE_DIR "/models/tiny";

// Ids: <bos> 0, <stop> 1 (special), <mark> 2 (not special), byte tokens 3..258, then the letters
// from 259 on.
inline constexpr TokenId kFirstByte = 3;

inline Json SmallTokenizerJson() {
  Json vocab = {{"<bos>", 0}, {"<stop>", 1}, {"<mark>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = kFirstByte + byte;
  int next = kFirstByte + 256;
  for (const char* token :
       {"a", "b", "c", "d", "\u2581", "é", "ab", "cd", "abcd", "bc", "\u2581a"}) {
    vocab[token] = next++;
  }
  const auto added = [](int id, const char* content, bool special) {
    return Json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", special}};
  };
  Json file = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  file["added_tokens"] = {added(0, "<bos>", true), added(1, "<stop>", true),
                          added(2, "<mark>", false)};
  file["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  file["pre_tokenizer"] = nullptr;
  file["post_processor"] = nullptr;
  Json decoders = Json::array();
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  file["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  file["model"] = {{"type", "BPE"}, {"byte_fallback", true}, {"vocab", vocab}};
  // In this order: "bc" before "ab".
  file["model"]["merges"] =
      Json::array({Json::array({"b", "c"}), Json::array({"a", "b"}), Json::array({"c", "d"}),
                   Json::array({"ab", "cd"}), Json::array({"\u2581", "a"})});
  return file;
}

inline Tokenizer Small() {
  return Tokenizer::Parse(SmallTokenizerJson().dump(), "fixture").value();
}

}  // namespace nibble::text
