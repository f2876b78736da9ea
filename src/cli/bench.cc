// nibble bench MODEL: load time, speed of prefill and decode, memory, and how near decoding comes
// to what the machine's memory allows.
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>
#include <memory>
#include <string>

#include "base/json.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "measure/speed.h"

namespace nibble::cli {
namespace {

struct BenchFlags {
  EngineFlags engine;
  measure::SpeedOptions speed;
  bool json = false;
};

int64_t PeakResidentBytes() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

Json ToJson(const std::vector<measure::SpeedRow>& rows) {
  Json json = Json::array();
  for (const measure::SpeedRow& row : rows) {
    json.push_back({{"work", row.work},
                    {"context_tokens", row.n_context_tokens},
                    {"sequences", row.n_sequences},
                    {"tokens_per_s", row.median()},
                    {"runs_tokens_per_s", row.tokens_per_s}});
  }
  return json;
}

void Print(const std::vector<measure::SpeedRow>& rows, double bytes_per_token, double bandwidth) {
  for (const measure::SpeedRow& row : rows) {
    const double rate = row.median();
    std::string line = fmt::format("{:7} {:6} tokens", row.work, row.n_context_tokens);
    if (row.work == "decode") line += fmt::format("  x {:2}", row.n_sequences);
    line += fmt::format("  {:8.1f} tok/s", rate);
    if (row.work == "decode" && row.n_sequences == 1) {
      line += fmt::format("  {:.1f} GB/s of weights, {:.0f} % of the read bandwidth",
                          rate * bytes_per_token * 1e-9, 100 * rate * bytes_per_token / bandwidth);
    }
    fmt::print("{}\n", line);
  }
}

Result<int> Bench(const BenchFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(OpenedModel model, OpenModel(flags.engine));
  NIBBLE_ASSIGN_OR_RETURN(
      const auto rows,
      measure::MeasureSpeed(*model.engine, model.weights->n_token_ids(), flags.speed));
  const int64_t peak_bytes = PeakResidentBytes();  // before the probe takes memory of its own
  const double bandwidth = measure::ReadBandwidth(*model.pool);
  const auto bytes_per_token = static_cast<double>(model.weights->BytesPerToken());
  if (flags.json) {
    const Json json = {{"model", flags.engine.model},
                       {"kernels", model.kernels->name},
                       {"threads", flags.engine.n_threads},
                       {"load_s", model.load_s},
                       {"peak_resident_bytes", peak_bytes},
                       {"weight_bytes_per_token", bytes_per_token},
                       {"read_bandwidth_bytes_per_s", bandwidth},
                       {"rows", ToJson(rows)}};
    fmt::print("{}\n", json.dump());
    return kDone;
  }
  fmt::print(
      "kernels {}, {} threads; loaded in {:.2f} s; peak resident {:.2f} GB; reads {:.1f} GB/s\n",
      model.kernels->name, flags.engine.n_threads, model.load_s,
      static_cast<double>(peak_bytes) * 1e-9, bandwidth * 1e-9);
  Print(rows, bytes_per_token, bandwidth);
  return kDone;
}

}  // namespace

void AddBench(CLI::App& root, Action* action) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = root.add_subcommand("bench", "Measure load, prefill and decode");
  AddEngineFlags(command, &flags->engine);
  const auto add_list = [&](const char* name, std::vector<int>* values, const char* help) {
    command->add_option(name, *values, help)
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 20))
        ->capture_default_str();
  };
  add_list("--prompt", &flags->speed.prompts, "Lengths of prompts to read");
  add_list("--context", &flags->speed.contexts, "Lengths of context to decode at");
  add_list("--batch", &flags->speed.batches, "Numbers of sequences that decode together");
  command->add_option("--tokens", flags->speed.n_tokens, "Tokens that each sequence decodes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--runs", flags->speed.n_runs, "Runs, of which the median counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, action] { *action = [flags] { return Bench(*flags); }; });
}

}  // namespace nibble::cli
