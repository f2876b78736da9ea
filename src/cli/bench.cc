// nibble bench TARGET. A model in this process: load time, speed of prefill and decode, memory, and
// how near decoding comes to what the machine's memory allows. A server: decode speed, throughput
// and long prompts as its clients see them.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "base/json.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/target.h"
#include "measure/run.h"
#include "measure/server_speed.h"
#include "measure/speed.h"

namespace nibble::cli {
namespace {

struct BenchFlags {
  TargetFlags target;
  measure::SpeedOptions speed;
  measure::ServerSpeedOptions server;
  std::string out;
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

void Print(const std::vector<measure::SpeedRow>& rows) {
  for (const measure::SpeedRow& row : rows) {
    std::string line = fmt::format("{:7} {:6} tokens", row.work, row.n_context_tokens);
    if (row.work == "decode") line += fmt::format("  x {:2}", row.n_sequences);
    fmt::print("{}  {:8.1f} tok/s\n", line, row.median());
  }
}

// A run of its own directory, so that `compare` can take it beside others.
Status WriteRun(const std::string& out, const Json& settings, const Json& identity,
                const Json& facts, const Json& summary) {
  if (out.empty()) return {};
  const Json manifest = {{"suite", {{"name", "bench"}, {"settings", settings}}},
                         {"target", identity},
                         {"facts", facts},
                         {"started", Now()}};
  NIBBLE_ASSIGN_OR_RETURN(measure::RunWriter writer, measure::RunWriter::Open(out, manifest));
  return writer.WriteSummary(summary);
}

Result<int> BenchEngine(const BenchFlags& flags) {
  EngineFlags engine = flags.target.engine;
  engine.options.max_sequences = std::ranges::max(flags.speed.batches);
  NIBBLE_ASSIGN_OR_RETURN(OpenedModel model, OpenModel(engine));
  NIBBLE_ASSIGN_OR_RETURN(
      const auto rows,
      measure::MeasureSpeed(*model.engine, model.weights->n_token_ids(), flags.speed));
  const int64_t peak_bytes = PeakResidentBytes();  // before the probe takes memory of its own
  const auto bytes_per_token = static_cast<double>(model.weights->BytesPerToken());
  measure::MemoryProbe probe(*model.pool);
  NIBBLE_ASSIGN_OR_RETURN(const measure::MemoryShare memory,
                          measure::MeasureMemoryShare(*model.engine, model.weights->n_token_ids(),
                                                      bytes_per_token, probe));
  const Json json = {{"model", engine.model},
                     {"kernels", model.kernels->name},
                     {"threads", engine.n_threads},
                     {"load_s", model.load_s},
                     {"peak_resident_bytes", peak_bytes},
                     {"weight_bytes_per_token", bytes_per_token},
                     {"read_bandwidth_bytes_per_s", memory.bytes_per_s},
                     {"share_of_read_bandwidth", memory.of_decode},
                     {"rows", ToJson(rows)}};
  if (!flags.out.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const Json identity, IdentityOf(engine));
    NIBBLE_ASSIGN_OR_RETURN(const Json facts, FactsOf(engine, model));
    const Json settings = {{"prompt", flags.speed.prompts}, {"context", flags.speed.contexts},
                           {"batch", flags.speed.batches},  {"tokens", flags.speed.n_tokens},
                           {"runs", flags.speed.n_runs},    {"threads", engine.n_threads}};
    NIBBLE_RETURN_IF_ERROR(WriteRun(flags.out, settings, identity, facts, json));
  }
  if (flags.json) {
    fmt::print("{}\n", json.dump());
    return kDone;
  }
  fmt::print("kernels {}, {} threads; loaded in {:.2f} s; peak resident {:.2f} GB\n",
             model.kernels->name, engine.n_threads, model.load_s,
             static_cast<double>(peak_bytes) * 1e-9);
  Print(rows);
  fmt::print("memory is read at {:.1f} GB/s; decoding of one sequence reaches {:.0f} % of that\n",
             memory.bytes_per_s * 1e-9, 100 * memory.of_decode);
  return kDone;
}

void PrintServer(const Json& facts, const Json& summary) {
  fmt::print("server {} {}, context {}, KV tokens {}, weights {}\n", facts["server"].dump(),
             facts["version"].dump(), facts["context_tokens"].dump(), facts["kv_tokens"].dump(),
             facts["weights"].dump());
  for (const Json& row : summary["rows"]) {
    std::string line = row["work"];
    if (row["context_tokens"] > 0)
      line += fmt::format(" at {} tokens", row["context_tokens"].dump());
    if (row["sequences"] > 1) line += fmt::format(", {} at once", row["sequences"].dump());
    if (!row.contains("tokens_per_s")) {
      fmt::print("{:32} failed\n", line);
      continue;
    }
    fmt::print("{:32} {:8.1f} tok/s ({:.1f} to {:.1f})", line, row["tokens_per_s"].get<double>(),
               row["slowest"].get<double>(), row["fastest"].get<double>());
    if (row.contains("fixed_s")) fmt::print("; fixed {:.3f} s", row["fixed_s"].get<double>());
    if (row.contains("first_token_s")) {
      const Json& first_s = row["first_token_s"];
      fmt::print("; prompt and answer {:.1f} tok/s; {}", row["total_tokens_per_s"].get<double>(),
                 first_s.is_null()
                     ? "no text came, so no time of a first token"
                     : fmt::format("first token after {:.3f} s", first_s.get<double>()));
    }
    fmt::print("\n");
  }
  fmt::print("prompt tokens from the server's cache: {:.1f} %\n",
             100 * summary["cached_share"].get<double>());
  for (const Json& flag : summary["flags"]) fmt::print("note: {}\n", flag.get<std::string>());
}

Result<int> BenchServer(const BenchFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const OpenedTarget opened, OpenTarget(flags.target));
  ProgressBar progress("bench", "requests");
  NIBBLE_ASSIGN_OR_RETURN(Json summary, measure::MeasureServer(*opened.target, flags.server,
                                                               [&](size_t done, size_t n) {
                                                                 progress.Update(done, n);
                                                               }));
  progress.Finish();
  summary["facts"] = opened.facts;
  const measure::ServerSpeedOptions& options = flags.server;
  const Json settings = {{"decode", {options.n_short_tokens, options.n_long_tokens}},
                         {"runs", options.n_runs},
                         {"context", options.contexts},
                         {"batch", options.batches},
                         {"tokens", options.n_tokens},
                         {"prompt", options.long_prompts}};
  NIBBLE_RETURN_IF_ERROR(WriteRun(flags.out, settings, opened.identity, opened.facts, summary));
  if (flags.json) {
    fmt::print("{}\n", summary.dump());
  } else {
    PrintServer(opened.facts, summary);
  }
  return summary["failed"] > 0 ? kAnswerIsNo : kDone;
}

}  // namespace

void AddBench(CLI::App& root, Action* action) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = root.add_subcommand("bench", "Measure the speed of a model or a server");
  AddTargetFlags(command, &flags->target);
  const auto add_list = [&](const char* name, std::vector<int>* values, std::vector<int>* of_server,
                            const char* help) {
    command
        ->add_option_function<std::vector<int>>(
            name,
            [values, of_server](const std::vector<int>& given) { *values = *of_server = given; },
            fmt::format("{}; default {}, server: {}", help, fmt::join(*values, ","),
                        fmt::join(*of_server, ",")))
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 20));
  };
  const auto add_number = [&](const char* name, int* value, int* of_server, const char* help) {
    command
        ->add_option_function<int>(
            name, [value, of_server](int given) { *value = *of_server = given; },
            fmt::format("{}; default {}, server: {}", help, *value, *of_server))
        ->check(CLI::PositiveNumber);
  };
  measure::SpeedOptions& speed = flags->speed;
  measure::ServerSpeedOptions& server = flags->server;
  add_list("--prompt", &speed.prompts, &server.long_prompts, "Lengths of prompts to read");
  add_list("--context", &speed.contexts, &server.contexts, "Lengths of context to decode at");
  add_list("--batch", &speed.batches, &server.batches, "Numbers of sequences at once");
  add_number("--tokens", &speed.n_tokens, &server.n_tokens, "Tokens that each of them decodes");
  add_number("--runs", &speed.n_runs, &server.n_runs, "Runs, of which the median counts");
  command->add_option("--long", server.n_long_tokens, "Server: the longer of the two answers")
      ->check(CLI::Range(32, 1 << 20))
      ->capture_default_str();
  command->add_option("--out", flags->out, "New directory of the run, for compare");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, action] {
    *action = [flags] {
      return IsUrl(flags->target.engine.model) ? BenchServer(*flags) : BenchEngine(*flags);
    };
  });
}

}  // namespace nibble::cli
