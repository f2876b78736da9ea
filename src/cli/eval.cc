// nibble eval TARGET --suite S: a suite's items, asked greedily and judged, kept as a run.
#include <fmt/format.h>

#include <ctime>
#include <memory>
#include <optional>
#include <string>

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
  EngineFlags engine;
  std::string suite;
  int n = 0;
  std::optional<uint64_t> seed;
  std::string out;
  bool json = false;
};

Result<measure::Suite> MakeSuite(const EvalFlags& flags) {
  const int n = flags.n > 0 ? flags.n : measure::kFortyQuestions;
  const uint64_t seed = n == measure::kFortyQuestions ? measure::kFortySeed : measure::kWiderSeed;
  return measure::FortySuite(n, flags.seed.value_or(seed));
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%FT%TZ", &utc)};
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
  for (const Json& flag : summary.at("flags")) fmt::print("note: {}\n", flag.get<std::string>());
}

Result<int> Eval(const EvalFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(OpenedTarget opened, OpenTarget(flags.engine));
  NIBBLE_ASSIGN_OR_RETURN(const measure::Suite suite, MakeSuite(flags));
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
      measure::RunSuite(*opened.target, suite, flags.engine.options.max_sequences,
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

}  // namespace

void AddEval(CLI::App& root, Action* action) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = root.add_subcommand("eval", "Score a model, or a server, on a suite");
  AddEngineFlags(command, &flags->engine);
  command->get_option("MODEL")->description(kTargetHelp);
  command->add_option("--suite", flags->suite, "forty: products, sums, capitals")
      ->required()
      ->check(CLI::IsMember({"forty"}));
  command->add_option("--n", flags->n, "Items; default: the suite's own number")
      ->check(CLI::Range(1, 1'000'000));
  command->add_option("--seed", flags->seed, "Of the suite's draws");
  command->add_option("--concurrency", flags->engine.options.max_sequences, "Items asked at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--out", flags->out,
                      "Directory of the run: manifest.json, records.jsonl, summary.json; a run "
                      "that was broken off goes on");
  command->add_flag("--json", flags->json, "Print one JSON object instead of a table");
  command->callback([flags, action] { *action = [flags] { return Eval(*flags); }; });
}

}  // namespace nibble::cli
