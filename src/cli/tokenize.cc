// nibble tokenize MODEL [TEXT|-]: the ids of a text, or of a conversation, as JSON.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "base/json.h"
#include "cli/command.h"
#include "cli/model_files.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace nibble::cli {
namespace {

struct TokenizeOptions {
  std::filesystem::path model;
  std::string text = "-";
  bool no_bos = false;
  bool jsonl = false;
  bool chat = false;
};

Result<bool> BoolOr(const Json& object, const char* key, bool fallback, std::string_view where) {
  const auto found = object.find(key);
  if (found == object.end()) return fallback;
  if (!found->is_boolean()) return Fail("{}: {}: expected true or false", where, key);
  return found->get<bool>();
}

// {"messages", "tools"?, "enable_thinking"?, "add_generation_prompt"?} -> {"text", "ids"}.
Result<std::string> TokenizeChat(const text::Tokenizer& tokenizer, bool closes_empty_thought,
                                 std::string_view json, std::string_view where) {
  NIBBLE_ASSIGN_OR_RETURN(const Json request, ParseJson(json, where));
  if (!request.is_object()) return Fail("{}: expected an object with messages", where);
  for (const auto& [key, value] : request.items()) {
    if (key != "messages" && key != "tools" && key != "enable_thinking" &&
        key != "add_generation_prompt") {
      return Fail("{}: unknown key {}", where, key);
    }
  }
  text::ChatOptions options{.closes_empty_thought = closes_empty_thought};
  NIBBLE_ASSIGN_OR_RETURN(options.enable_thinking,
                          BoolOr(request, "enable_thinking", options.enable_thinking, where));
  NIBBLE_ASSIGN_OR_RETURN(
      options.add_generation_prompt,
      BoolOr(request, "add_generation_prompt", options.add_generation_prompt, where));
  const auto rendered =
      text::RenderChat(request.value("messages", Json()), request.value("tools", Json()), options);
  if (!rendered.has_value()) return Fail("{}: {}", where, rendered.error().message);
  // The rendered text begins with <bos> itself.
  return Json{{"text", *rendered}, {"ids", tokenizer.Encode(*rendered, false)}}.dump();
}

Result<std::string> TokenizeOne(const text::Tokenizer& tokenizer, const TokenizeOptions& options,
                                bool closes_empty_thought, const std::string& input,
                                std::string_view where) {
  if (options.chat) return TokenizeChat(tokenizer, closes_empty_thought, input, where);
  if (!options.jsonl) return Json(tokenizer.Encode(input, !options.no_bos)).dump();
  NIBBLE_ASSIGN_OR_RETURN(const Json text, ParseJson(input, where));
  if (!text.is_string()) return Fail("{}: expected a JSON string", where);
  return Json(tokenizer.Encode(text.get_ref<const std::string&>(), !options.no_bos)).dump();
}

Result<int> Tokenize(const TokenizeOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(options.model));
  bool closes_empty_thought = false;
  if (options.chat) {
    NIBBLE_ASSIGN_OR_RETURN(closes_empty_thought, ClosesEmptyThought(options.model));
  }
  const auto print = [&](const std::string& input, std::string_view where) -> Status {
    NIBBLE_ASSIGN_OR_RETURN(const std::string line,
                            TokenizeOne(tokenizer, options, closes_empty_thought, input, where));
    fmt::print("{}\n", line);
    return {};
  };
  if (!options.jsonl) {
    std::string input = options.text;
    if (input == "-") {
      input.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
    }
    NIBBLE_RETURN_IF_ERROR(print(input, "conversation"));
    return kDone;
  }
  if (options.text != "-") return Fail("--jsonl reads standard input: leave TEXT out");
  std::string line;
  for (int n_lines = 1; std::getline(std::cin, line); ++n_lines) {
    NIBBLE_RETURN_IF_ERROR(print(line, fmt::format("line {}", n_lines)));
  }
  return kDone;
}

}  // namespace

void AddTokenize(CLI::App& root, Action* action) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = root.add_subcommand("tokenize", "Token ids of a text, as JSON");
  command
      ->add_option("MODEL", options->model,
                   "Directory with tokenizer.json, that file, or a .gguf file")
      ->required();
  command->add_option("TEXT", options->text, "The text; - or nothing: standard input");
  command->add_flag("--no-bos", options->no_bos, "Do not put <bos> in front");
  command->add_flag("--chat", options->chat,
                    "The input is a conversation: {\"messages\", \"tools\", \"enable_thinking\", "
                    "\"add_generation_prompt\"}; prints {\"text\", \"ids\"}");
  command->add_flag("--jsonl", options->jsonl,
                    "One JSON string (with --chat: one conversation) a line of standard input; "
                    "prints one line for each");
  command->callback([options, action] { *action = [options] { return Tokenize(*options); }; });
}

}  // namespace nibble::cli
