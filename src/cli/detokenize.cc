// nibble detokenize MODEL IDS: the text of token ids.
#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/command.h"
#include "cli/model_files.h"
#include "text/tokenizer.h"

namespace nibble::cli {
namespace {

struct DetokenizeOptions {
  std::filesystem::path model;
  std::string ids;
  bool keep_special = false;
  bool jsonl = false;
};

// "1,2,3", with or without the brackets and spaces of a JSON list.
Result<std::vector<text::TokenId>> ParseIds(std::string_view list, std::string_view where) {
  const std::string json = list.starts_with('[') ? std::string(list) : fmt::format("[{}]", list);
  NIBBLE_ASSIGN_OR_RETURN(const Json values, ParseJson(json, where));
  std::vector<text::TokenId> ids;
  for (const Json& value : values) {
    if (!value.is_number_integer() || value < 0 || value > INT32_MAX) {
      return Fail("{}: expected token ids, found {}", where, value.dump());
    }
    ids.push_back(value.get<text::TokenId>());
  }
  return ids;
}

Result<int> Detokenize(const DetokenizeOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(options.model));
  const auto decode = [&](std::string_view list, std::string_view where) -> Result<std::string> {
    NIBBLE_ASSIGN_OR_RETURN(const auto ids, ParseIds(list, where));
    return tokenizer.Decode(ids, !options.keep_special);
  };
  if (!options.jsonl) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string text, decode(options.ids, "ids"));
    fmt::print("{}\n", text);
    return kDone;
  }
  if (!options.ids.empty()) return Fail("--jsonl reads standard input: leave IDS out");
  std::string line;
  for (int n_lines = 1; std::getline(std::cin, line); ++n_lines) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string text, decode(line, fmt::format("line {}", n_lines)));
    fmt::print("{}\n", Json(text).dump());
  }
  return kDone;
}

}  // namespace

void AddDetokenize(CLI::App& root, Action* action) {
  auto options = std::make_shared<DetokenizeOptions>();
  CLI::App* command = root.add_subcommand("detokenize", "The text of token ids");
  command
      ->add_option("MODEL", options->model,
                   "Directory with tokenizer.json, that file, or a .gguf file")
      ->required();
  command->add_option("IDS", options->ids, "Ids, as in 2,105,9259");
  command->add_flag("--keep-special", options->keep_special, "Print special tokens too");
  command->add_flag("--jsonl", options->jsonl,
                    "One list of ids a line of standard input; prints a JSON string for each");
  command->callback([options, action] { *action = [options] { return Detokenize(*options); }; });
}

}  // namespace nibble::cli
