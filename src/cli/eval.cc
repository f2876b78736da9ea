// nibble eval MODEL --suite forty: the exact questions, answered greedily and judged.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/model_files.h"
#include "measure/ask.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace nibble::cli {
namespace {

struct EvalFlags {
  EngineFlags engine;
  std::string suite;
  int n = measure::kFortyQuestions;
  uint64_t seed = 0;
  std::string out;
  bool json = false;
};

// What was asked and how: the part of a run's record that two runs must share to be compared.
Json Settings(const EvalFlags& flags) {
  return {{"suite", flags.suite},
          {"n", flags.n},
          {"seed", flags.seed},
          {"model", flags.engine.model},
          {"activations", Name(flags.engine.options.activations)},
          {"kv", Name(flags.engine.options.kv_format)},
          {"template", "chat"},
          {"temperature", 0},
          {"max_tokens", measure::kMaxAnswerTokens}};
}

// A run gets a directory of its own, so that no record mixes two.
Status CreateRunDirectory(const std::filesystem::path& dir) {
  std::error_code fault;
  if (std::filesystem::exists(dir, fault)) {
    return Fail("--out {}: exists already; expected a new directory", dir.string());
  }
  std::filesystem::create_directories(dir, fault);
  if (fault) return Fail("--out {}: {}", dir.string(), fault.message());
  return {};
}

Status WriteRun(const std::filesystem::path& dir, const std::vector<measure::Answer>& answers,
                const Json& record) {
  std::string lines;
  for (const measure::Answer& answer : answers) lines += measure::ToJson(answer).dump() + "\n";
  NIBBLE_RETURN_IF_ERROR(WriteFile(dir / "answers.jsonl", lines));
  return WriteFile(dir / "run.json", record.dump(2) + "\n");
}

void PrintSummary(const EvalFlags& flags, const Json& summary) {
  const auto line = [](std::string_view name, int n_correct, int n_total) {
    fmt::print("{:<8} {:>5} of {:>5}  {:5.1f} %\n", name, n_correct, n_total,
               n_total > 0 ? 100.0 * n_correct / n_total : 0.0);
  };
  fmt::print("{}: {} questions, seed {}\n", flags.suite, flags.n, flags.seed);
  for (const measure::Kind kind : measure::kKinds) {
    const Json& counts = summary.at("kinds").at(Name(kind));
    line(Name(kind), counts.at("correct"), counts.at("total"));
  }
  line("all", summary.at("correct"), summary.at("total"));
}

Result<int> Eval(const EvalFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const OpenedModel model, OpenModel(flags.engine));
  NIBBLE_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, OpenTokenizer(flags.engine.model));
  text::ChatOptions chat;
  NIBBLE_ASSIGN_OR_RETURN(chat.closes_empty_thought, ClosesEmptyThought(flags.engine.model));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int32_t> stop_ids, StopTokens(flags.engine.model));
  if (!flags.out.empty()) NIBBLE_RETURN_IF_ERROR(CreateRunDirectory(flags.out));
  const std::vector<measure::Question> questions = measure::MakeQuestions(flags.n, flags.seed);

  ProgressBar progress("eval", "questions");
  NIBBLE_ASSIGN_OR_RETURN(
      const std::vector<measure::Answer> answers,
      measure::AskAll(*model.engine, tokenizer, chat, stop_ids, questions,
                      [&](size_t n_done) { progress.Update(n_done, questions.size()); }));
  progress.Finish();

  const Json summary = measure::Summarize(answers);
  Json record = Settings(flags);
  record.update(summary);
  if (!flags.out.empty()) NIBBLE_RETURN_IF_ERROR(WriteRun(flags.out, answers, record));
  if (flags.json) {
    fmt::print("{}\n", record.dump());
  } else {
    PrintSummary(flags, summary);
  }
  return kDone;
}

}  // namespace

void AddEval(CLI::App& root, Action* action) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = root.add_subcommand("eval", "Score a model on questions with exact answers");
  AddEngineFlags(command, &flags->engine);
  command->add_option("--suite", flags->suite, "forty: products, sums, capitals")
      ->required()
      ->check(CLI::IsMember({"forty"}));
  command->add_option("--n", flags->n, "Questions, of the three kinds in proportion 15 : 15 : 10")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  CLI::Option* seed = command->add_option(
      "--seed", flags->seed,
      fmt::format("Of the draws; default {} for {} questions, else {}", measure::kFortySeed,
                  measure::kFortyQuestions, measure::kWiderSeed));
  command->add_option("--out", flags->out, "New directory for answers.jsonl and run.json");
  command->add_flag("--json", flags->json, "Print one JSON object instead of a table");
  command->callback([flags, seed, action] {
    if (seed->count() == 0) {
      flags->seed =
          flags->n == measure::kFortyQuestions ? measure::kFortySeed : measure::kWiderSeed;
    }
    *action = [flags] { return Eval(*flags); };
  });
}

}  // namespace nibble::cli
