// nibble generate MODEL PROMPT: one answer, streamed, or as JSON for programs.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/stopwatch.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/model_files.h"
#include "engine/engine.h"
#include "grammar/grammar.h"
#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace nibble::cli {
namespace {

struct GenerateFlags {
  EngineFlags engine;
  std::string prompt;
  std::vector<int32_t> prompt_ids;
  bool raw = false;
  int max_tokens = 256;
  engine::Sampling sampling;
  bool ignore_eos = false;
  bool json = false;
  int top_logprobs = 0;
  bool prompt_logprobs = false;
  // What the answer must look like; one of them.
  std::string json_schema;
  bool json_object = false;
  std::string regex;
  std::vector<std::string> choices;
};

struct Answer {
  std::string text;
  std::vector<engine::Event> events;
  double prefill_s = 0;  // until the first token
  double decode_s = 0;   // all further ones
};

// The prompt's ids: as given, or its text encoded, in the chat format unless --raw. <bos> comes
// once.
Result<std::vector<int32_t>> PromptIds(const GenerateFlags& flags,
                                       const std::optional<text::Tokenizer>& tokenizer) {
  if (!flags.prompt_ids.empty()) return flags.prompt_ids;
  std::string prompt = flags.prompt;
  if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  if (flags.raw) return tokenizer->Encode(prompt, !prompt.starts_with("<bos>"));
  const Json messages = Json::array({{{"role", "user"}, {"content", prompt}}});
  text::ChatOptions options;
  NIBBLE_ASSIGN_OR_RETURN(options.closes_empty_thought, ClosesEmptyThought(flags.engine.model));
  NIBBLE_ASSIGN_OR_RETURN(const std::string chat, text::RenderChat(messages, nullptr, options));
  return tokenizer->Encode(chat, false);
}

// Runs the one request; prints text as it comes unless the answer is wanted as JSON.
Answer Run(const GenerateFlags& flags, engine::Engine& engine, text::Detokenizer* detokenizer) {
  Answer answer;
  const auto show = [&](const std::string& piece) {
    answer.text += piece;
    if (flags.json) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  const Stopwatch stopwatch;
  while (!engine.idle()) {
    for (engine::Event& event : engine.Step()) {
      if (answer.events.empty()) answer.prefill_s = stopwatch.seconds();
      if (detokenizer != nullptr) show(detokenizer->Push(event.token_id));
      answer.events.push_back(std::move(event));
    }
  }
  if (detokenizer != nullptr) show(detokenizer->Flush());
  answer.decode_s = stopwatch.seconds() - answer.prefill_s;
  return answer;
}

Json ToJson(const GenerateFlags& flags, const std::vector<int32_t>& prompt_ids,
            const Answer& answer, bool has_text) {
  Json token_ids = Json::array();
  Json top_logprobs = Json::array();
  for (const engine::Event& event : answer.events) {
    token_ids.push_back(event.token_id);
    Json step = Json::array();
    for (const auto& [id, logprob] : event.top) step.push_back({id, logprob});
    top_logprobs.push_back(std::move(step));
  }
  const engine::FinishReason finish = answer.events.back().finish;
  Json json = {{"text", has_text ? Json(answer.text) : Json(nullptr)},
               {"token_ids", token_ids},
               {"prompt_ids", prompt_ids},
               {"finish_reason", finish == engine::FinishReason::kStop ? "stop" : "length"},
               {"usage",
                {{"prompt_tokens", prompt_ids.size()},
                 {"completion_tokens", answer.events.size()},
                 {"total_tokens", prompt_ids.size() + answer.events.size()}}}};
  if (flags.top_logprobs > 0) json["top_logprobs"] = std::move(top_logprobs);
  if (flags.prompt_logprobs) {
    json["prompt_logprobs"] = Json::array({nullptr});  // the first token has no predecessor
    for (const double logprob : answer.events[0].prompt_logprobs) {
      json["prompt_logprobs"].push_back(logprob);
    }
  }
  return json;
}

// As zeux/calm does: GB/s are the bytes of weights that the decoded tokens were multiplied with.
void PrintStatus(size_t n_prompt_tokens, const Answer& answer, int64_t bytes_per_token) {
  const auto n_decoded = static_cast<double>(answer.events.size() - 1);
  const double tokens_per_s = answer.decode_s > 0 ? n_decoded / answer.decode_s : 0;
  fmt::print(stderr,
             "prompt: {} tokens in {:.3f} s; generated: {} tokens, {:.1f} tok/s, {:.2f} GB/s "
             "({:.1f} MB of weights a token)\n",
             n_prompt_tokens, answer.prefill_s, answer.events.size(), tokens_per_s,
             tokens_per_s * static_cast<double>(bytes_per_token) * 1e-9,
             static_cast<double>(bytes_per_token) * 1e-6);
}

// Null: the answer is free.
Result<std::shared_ptr<TokenConstraint>> ConstraintOf(
    const GenerateFlags& flags, const std::optional<text::Tokenizer>& tokenizer) {
  if (flags.json_schema.empty() && !flags.json_object && flags.regex.empty() &&
      flags.choices.empty()) {
    return nullptr;
  }
  if (!tokenizer.has_value()) return Fail("{}: has no tokenizer", flags.engine.model);
  NIBBLE_ASSIGN_OR_RETURN(grammar::Vocabulary made, grammar::Vocabulary::Make(*tokenizer));
  const auto vocabulary = std::make_shared<const grammar::Vocabulary>(std::move(made));
  const auto compile = [&]() -> Result<std::shared_ptr<const grammar::Grammar>> {
    if (flags.json_object) return grammar::Grammar::OfJsonObject(vocabulary);
    if (!flags.regex.empty()) return grammar::Grammar::OfRegex(flags.regex, vocabulary);
    if (!flags.choices.empty()) return grammar::Grammar::OfChoice(flags.choices, vocabulary);
    std::ifstream file(flags.json_schema, std::ios::binary);
    if (!file) return Fail("{}: cannot be read", flags.json_schema);
    const std::string schema(std::istreambuf_iterator<char>(file), {});
    return grammar::Grammar::OfJsonSchema(schema, vocabulary);
  };
  NIBBLE_ASSIGN_OR_RETURN(auto grammar, compile());
  return grammar::Grammar::NewConstraint(std::move(grammar));
}

Result<int> Generate(const GenerateFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const OpenedModel model, OpenModel(flags.engine));
  // With token ids given, a model without a tokenizer still answers in token ids.
  std::optional<text::Tokenizer> tokenizer;
  if (flags.prompt_ids.empty() || HasTokenizer(flags.engine.model)) {
    NIBBLE_ASSIGN_OR_RETURN(tokenizer, OpenTokenizer(flags.engine.model));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt_ids, PromptIds(flags, tokenizer));
  engine::Request request{.prompt_ids = prompt_ids,
                          .max_tokens = flags.max_tokens,
                          .sampling = flags.sampling,
                          .stop_ids = {},
                          .n_top_logprobs = flags.top_logprobs,
                          .prompt_logprobs = flags.prompt_logprobs};
  NIBBLE_ASSIGN_OR_RETURN(request.constraint, ConstraintOf(flags, tokenizer));
  if (!flags.ignore_eos) {
    NIBBLE_ASSIGN_OR_RETURN(request.stop_ids, StopTokens(flags.engine.model));
  }
  NIBBLE_RETURN_IF_ERROR(model.engine->Submit(std::move(request)));
  std::optional<text::Detokenizer> detokenizer;
  if (tokenizer.has_value()) detokenizer.emplace(*tokenizer);
  const Answer answer =
      Run(flags, *model.engine, detokenizer.has_value() ? &*detokenizer : nullptr);
  if (flags.json) {
    fmt::print("{}\n", ToJson(flags, prompt_ids, answer, tokenizer.has_value()).dump());
  } else {
    fmt::print("\n");
  }
  std::fflush(stdout);  // where both go to one place, the answer comes first
  PrintStatus(prompt_ids.size(), answer, model.weights->BytesPerToken());
  return kDone;
}

}  // namespace

void AddGenerate(CLI::App& root, Action* action) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = root.add_subcommand("generate", "Answer one prompt");
  AddEngineFlags(command, &flags->engine);
  CLI::Option* prompt =
      command->add_option("PROMPT", flags->prompt, "Text of the user's turn; - reads stdin");
  CLI::Option* ids = command
                         ->add_option("--prompt-ids", flags->prompt_ids,
                                      "Token ids of the whole prompt, taken as they are")
                         ->delimiter(',');
  ids->excludes(prompt);
  command->add_flag("--raw", flags->raw, "No chat format: <bos> and the text alone");
  command->add_option("--max-tokens", flags->max_tokens, "Generate at most this many")
      ->capture_default_str();
  command->add_option("--temperature", flags->sampling.temperature, "0: greedy")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-k", flags->sampling.top_k, "Draw from the k most likely; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-p", flags->sampling.top_p, "Draw from the most likely that reach p")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--seed", flags->sampling.seed, "Of the draws")->capture_default_str();
  command->add_flag("--ignore-eos", flags->ignore_eos, "Go on after a stop token");
  auto* shape = command->add_option_group("Structured output");
  shape->add_option("--json-schema", flags->json_schema,
                    "The answer is JSON of this schema's file");
  shape->add_flag("--json-object", flags->json_object, "The answer is a JSON object");
  shape->add_option("--regex", flags->regex, "The answer as a whole matches this expression");
  shape->add_option("--choice", flags->choices, "The answer is one of these; once for each");
  shape->require_option(0, 1);
  command->add_flag("--json", flags->json, "Print one JSON object instead of text");
  command
      ->add_option("--top-logprobs", flags->top_logprobs,
                   "With --json: the K most likely [id, logprob] of each step")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--prompt-logprobs", flags->prompt_logprobs,
                    "With --json: the log-probability of each prompt token");
  command->callback([flags, prompt, ids, action] {
    if (prompt->count() + ids->count() == 0) throw CLI::RequiredError("PROMPT or --prompt-ids");
    *action = [flags] { return Generate(*flags); };
  });
}

}  // namespace nibble::cli
