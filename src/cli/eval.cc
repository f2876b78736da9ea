// nibble eval TARGET --suite S: a suite's items, asked greedily and judged, kept as a run.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/peak_memory.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/target.h"
#include "measure/exact_questions.h"
#include "measure/run.h"
#include "measure/suite.h"

namespace nibble::cli {
namespace {

struct EvalFlags {
  TargetFlags target;
  std::string suite;
  int n = 0;
  std::optional<uint64_t> seed;
  std::string data;
  measure::ChoiceOptions choice;
  std::vector<int> lengths = {1024, 2048, 4096};
  std::vector<int> depths = {0, 25, 50, 75, 100};
  std::string out;
  bool json = false;
};

Result<measure::Suite> MakeSuite(const EvalFlags& flags, measure::Target& target) {
  const std::string& suite = flags.suite;
  if (flags.data.empty() && (suite == "gsm8k" || suite == "bfcl-simple" || suite == "kl")) {
    return Fail("--suite {}: needs --data", suite);
  }
  if (suite == "gsm8k") return measure::Gsm8kSuite(flags.data, flags.n);
  if (suite == "bfcl-simple") return measure::BfclSuite(flags.data, flags.n);
  if (suite == "identity") return measure::IdentitySuite(flags.data, flags.n);
  if (suite == "kl") return measure::KlSuite(flags.data, flags.n, flags.choice.n_top_logprobs);
  if (suite == "choice") {
    measure::ChoiceOptions choice = flags.choice;
    choice.data = flags.data;
    return measure::ChoiceSuite(choice, flags.n);
  }
  if (suite == "long") {
    return measure::LongSuite(target, flags.lengths, flags.depths, std::max(flags.n, 1));
  }
  const int n = flags.n > 0 ? flags.n : measure::kFortyQuestions;
  const uint64_t seed = n == measure::kFortyQuestions ? measure::kFortySeed : measure::kWiderSeed;
  return measure::FortySuite(n, flags.seed.value_or(seed));
}

void PrintSummary(const Json& summary) {
  const auto line = [](const std::string& name, double n_correct, int n_total) {
    fmt::print("{:<12} {:>6g} of {:>5}  {:5.1f} %", name, n_correct, n_total,
               n_total > 0 ? 100.0 * n_correct / n_total : 0.0);
  };
  fmt::print("{}: {} records\n", summary.at("suite").get<std::string>(), summary.at("n").dump());
  if (summary.contains("accuracy")) {
    for (const auto& [kind, counts] : summary.at("kinds").items()) {
      line(kind, counts.at("correct"), counts.at("total"));
      fmt::print("\n");
    }
    line("all", summary.at("correct"), summary.at("n"));
    fmt::print("  (95 %: {:.1f} to {:.1f})\n", 100 * summary.at("interval")[0].get<double>(),
               100 * summary.at("interval")[1].get<double>());
  }
  for (const char* key : {"calibration_error", "brier_score", "perplexity", "labels_returned"}) {
    if (summary.contains(key)) fmt::print("{}: {}\n", key, summary[key].dump());
  }
  for (const Json& flag : summary.at("flags")) fmt::print("note: {}\n", flag.get<std::string>());
}

Result<int> Eval(const EvalFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(OpenedTarget opened, OpenTarget(flags.target));
  NIBBLE_ASSIGN_OR_RETURN(const measure::Suite suite, MakeSuite(flags, *opened.target));
  const Json manifest = {{"suite", measure::ManifestOf(suite)},
                         {"target", opened.identity},
                         {"facts", opened.facts},
                         {"started", Now()}};
  std::optional<measure::RunWriter> writer;
  if (!flags.out.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(auto begun, measure::RunWriter::Open(flags.out, manifest));
    writer.emplace(std::move(begun));
  }
  ProgressBar progress("eval", "items");
  NIBBLE_ASSIGN_OR_RETURN(
      const measure::SuiteResult result,
      measure::RunSuite(*opened.target, suite, flags.target.engine.options.max_sequences,
                        writer.has_value() ? &*writer : nullptr,
                        [&](size_t n_done, size_t n) { progress.Update(n_done, n); }));
  progress.Finish();
  Json summary = measure::Summarize(suite.name, result.records);
  summary["peak_resident_bytes"] = PeakResidentBytes();
  summary["finished"] = Now();
  const size_t n_failed = result.faults.size();
  if (writer.has_value() && n_failed == 0) NIBBLE_RETURN_IF_ERROR(writer->WriteSummary(summary));
  if (flags.json) {
    fmt::print("{}\n", summary.dump());
  } else {
    PrintSummary(summary);
  }
  if (n_failed == 0) return kDone;
  fmt::print(stderr, "{} of {} requests failed, the first one {}\n", n_failed, suite.items.size(),
             result.faults.front());
  return kAnswerIsNo;
}

void AddSuiteFlags(CLI::App* command, EvalFlags* flags) {
  measure::ChoiceOptions& choice = flags->choice;
  command
      ->add_option("--prompt-template", choice.prompt_pattern,
                   "choice: the prompt; {COLUMN} stands for a column's text")
      ->capture_default_str();
  command->add_option("--labels", choice.labels, "choice: the labels of all records")
      ->delimiter(',');
  command->add_option("--labels-column", choice.labels_column, "choice: column of the labels")
      ->capture_default_str();
  command
      ->add_option("--gold-column", choice.gold_column,
                   "choice: column of the right label, or of its number from 0")
      ->capture_default_str();
  command->add_option("--kind-column", choice.kind_column, "choice: column of the subset's name")
      ->capture_default_str();
  command->add_option("--answer-lead", choice.answer_lead,
                      "choice: the answer's beginning, before the label");
  command
      ->add_option("--top-logprobs", choice.n_top_logprobs, "choice, kl: likely tokens to ask for")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--lengths", flags->lengths, "long: lengths of the texts in tokens")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--depths", flags->depths, "long: places of the needle in percent")
      ->delimiter(',')
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
}

}  // namespace

void AddEval(CLI::App& root, Action* action) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = root.add_subcommand("eval", "Score a model, or a server, on a suite");
  AddTargetFlags(command, &flags->target);
  command
      ->add_option(
          "--suite", flags->suite,
          "forty: products, sums, capitals; gsm8k: problems in words; bfcl-simple: one tool "
          "call; choice: labels read from one token; long: a needle by length and depth; "
          "identity: greedy answers token by token; kl: likelihoods of a text")
      ->required()
      ->check(CLI::IsMember({"forty", "gsm8k", "bfcl-simple", "choice", "long", "identity", "kl"}));
  command->add_option("--data", flags->data,
                      "gsm8k, choice, identity: a JSONL file; kl: a text; bfcl-simple: the "
                      "directory that holds BFCL_v4_simple_python.json and possible_answer/");
  command->add_option("--n", flags->n, "Items; default: the suite's own number")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--seed", flags->seed, "Of the suite's draws");
  AddSuiteFlags(command, flags.get());
  command
      ->add_option("--concurrency", flags->target.engine.options.max_sequences,
                   "Items asked at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--out", flags->out,
                      "Directory of the run: manifest.json, records.jsonl, summary.json; a run "
                      "that was broken off goes on");
  command->add_flag("--json", flags->json, "Print one JSON object instead of a table");
  command->callback([flags, action] { *action = [flags] { return Eval(*flags); }; });
}

}  // namespace nibble::cli
