// nibble repack: a bf16 QAT checkpoint to an exact 4-bit one, or to an approximate 8-bit one.
#include "repack/repack.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/progress.h"
#include "base/stopwatch.h"
#include "base/thread_pool.h"
#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/print_grid_counts.h"
#include "cli/repack_gguf.h"
#include "cli/run_facts.h"
#include "cli/units.h"

namespace nibble::cli {
namespace {

struct RepackOptions {
  std::string source;
  std::string out;
  repack::Options options{.n_threads = AvailableCores()};
  std::optional<repack::GgufTables> embeddings;  // gguf
  std::string max_memory;
  std::string max_shard_size;
  bool as_json = false;
};

void PrintParts(const repack::RepackReport& report) {
  struct PartRow {
    size_t n_packed = 0;
    size_t n_copied = 0;
    uint64_t n_bytes = 0;
  };
  std::map<gemma::Part, PartRow> rows;
  for (const repack::TensorReport& tensor : report.tensors) {
    if (tensor.output.empty()) continue;
    PartRow& row = rows[tensor.part];
    (tensor.action == repack::Action::kPack ? row.n_packed : row.n_copied) += 1;
    row.n_bytes += tensor.output_bytes;
  }
  fmt::print("{:<12} {:>8} {:>8} {:>10}\n", "part", "packed", "copied", "size");
  for (const auto& [part, row] : rows) {
    fmt::print("{:<12} {:>8} {:>8} {:>10}\n", gemma::Name(part), row.n_packed, row.n_copied,
               FormatBytes(row.n_bytes));
  }
}

void PrintCoverage(const repack::RepackReport& report) {
  fmt::print("packed: {:.1f} % of the text model's bytes", 100 * report.packed_share());
  const char* before = "; left as they are:";
  for (const repack::TensorReport* tensor : report.left_matrices()) {
    constexpr uint64_t kShown = 20;  // one in so many bytes
    if (tensor->source_bytes * kShown < report.source_bytes()) continue;
    fmt::print("{} {} ({})", before, tensor->source, FormatBytes(tensor->source_bytes));
    before = ",";
  }
  fmt::print("\n");
}

std::string FormatError(const repack::RoundingError& error) {
  const std::optional<double> snr_db = error.snr_db();
  return fmt::format("{:>8.3f} % {:>8} {:>10.2e} {:>10.2e}", 100 * error.relative_error(),
                     snr_db.has_value() ? fmt::format("{:.1f} dB", *snr_db) : "-", error.max_error,
                     error.mean_error());
}

void PrintRounding(const repack::RepackReport& report) {
  const bool is_min_max = report.options.rounding == repack::Rounding::kMinMax;
  fmt::print("\nLOSSY: {}\n", is_min_max ? "int4 rounded with scale = amax / 7.5 in each group"
                                         : "int8 per output channel, scale = absmax / 127");
  size_t width = 0;
  for (const repack::TensorReport& tensor : report.tensors) {
    if (tensor.counts.rounding.n_values > 0) width = std::max(width, tensor.output.size());
  }
  fmt::print("{:<{}} {:>10} {:>8} {:>10} {:>10}\n", "rounded", width, "rel. error", "SNR",
             "largest", "mean");
  for (const repack::TensorReport& tensor : report.tensors) {
    if (tensor.counts.rounding.n_values == 0) continue;
    fmt::print("{:<{}} {}\n", tensor.output, width, FormatError(tensor.counts.rounding));
  }
  fmt::print("{:<{}} {}\n", "total", width, FormatError(report.totals.rounding));
}

void PrintReport(const RepackOptions& run, const repack::RepackReport& report) {
  using repack::Action;
  fmt::print("{} -> {}: {}{}\n\n", run.source, run.out, Name(report.options.format),
             report.options.dry_run ? " (dry run, nothing written)" : "");
  PrintParts(report);
  fmt::print("{:<30} {:>10}, from {}\n", "total", FormatBytes(report.output_bytes()),
             FormatBytes(report.source_bytes()));
  const std::pair<Action, const char*> drops[] = {
      {Action::kDropTower, "tower tensors"},
      {Action::kDropLeftover, "K/V tensors of KV-shared layers"},
      {Action::kDropDuplicateHead, "copy of the token table as lm_head"}};
  for (const auto& [drop, what] : drops) {
    if (report.CountOf(drop) > 0) fmt::print("dropped: {} {}\n", report.CountOf(drop), what);
  }
  for (const std::string& module : report.unpacked_linears) {
    fmt::print("left in bf16: {} (its rows do not divide into groups of 32 on {} device{})\n",
               module, report.options.tensor_parallel,
               report.options.tensor_parallel == 1 ? "" : "s");
  }
  PrintCoverage(report);
  if (report.totals.grid.n_groups > 0) {
    PrintGridCounts(report.totals.grid, report.options.scale_dtype);
  }
  if (report.totals.rounding.n_values > 0) PrintRounding(report);
}

// The size options, which the parser keeps as text.
Status ReadSizes(RepackOptions* run) {
  for (const auto& [text, n_bytes] : {std::pair(&run->max_memory, &run->options.max_memory_bytes),
                                      {&run->max_shard_size, &run->options.max_shard_bytes}}) {
    if (text->empty()) continue;
    NIBBLE_ASSIGN_OR_RETURN(*n_bytes, ParseSize(*text));
  }
  return {};
}

Result<int> RunRepack(RepackOptions run) {
  NIBBLE_RETURN_IF_ERROR(ReadSizes(&run));
  if (run.options.format == repack::Format::kGguf) {
    if (run.options.rounding != repack::Rounding::kNone || !run.max_shard_size.empty() ||
        run.options.tensor_parallel > 1) {
      return Fail("--rounding, --max-shard-size and --tensor-parallel are not for --format gguf");
    }
    return RunRepackGguf(run.source, run.out, run.options,
                         run.embeddings.value_or(repack::GgufTables::kQ40), run.as_json);
  }
  if (run.embeddings.has_value()) return Fail("--embeddings is for --format gguf");
  const bool is_q4w4a16 = run.options.format == repack::Format::kQ4W4A16 ||
                          run.options.format == repack::Format::kQ4W4A16Emb4;
  if (run.options.rounding != repack::Rounding::kNone && !is_q4w4a16) {
    return Fail("--rounding minmax is for --format q4w4a16 and q4w4a16emb4");
  }
  const Stopwatch stopwatch;
  ProgressBar bar("repack");
  const auto report =
      repack::Repack(run.source, run.out, run.options,
                     [&](uint64_t done, uint64_t total) { bar.Update(done, total); });
  bar.Finish();
  if (!report.has_value()) return std::unexpected(report.error());
  const RunFacts facts = {.seconds = stopwatch.seconds(), .source_bytes = report->source_bytes()};
  if (run.as_json) {
    Json json = report->ToJson();
    json["run"] = facts.ToJson(run.options);
    json["run"]["shards_taken_over"] = report->n_shards_taken_over;
    fmt::print("{}\n", json.dump(2));
  } else {
    PrintReport(run, *report);
  }
  std::fflush(stdout);
  if (run.options.dry_run) return kDone;
  facts.Print(run.options);
  if (report->n_shards_taken_over > 0) {
    fmt::print(stderr, "{} of {} shards were finished before\n", report->n_shards_taken_over,
               report->shards.size());
  }
  return kDone;
}

// What is written, and how it is rounded.
void AddFormatFlags(CLI::App* command, RepackOptions* run) {
  const std::map<std::string, repack::Format> formats = {
      {"q4w4a16", repack::Format::kQ4W4A16},
      {"q4w4a16emb4", repack::Format::kQ4W4A16Emb4},
      {"w8a8", repack::Format::kW8A8},
      {"w8a8emb4", repack::Format::kW8A8Emb4},
      {"gguf", repack::Format::kGguf}};
  AddChoice(command, "--format", &run->options.format, formats,
            "q4w4a16: linears in int4, tables bf16; q4w4a16emb4: tables and head as well; "
            "w8a8: linears in int8 per channel (approximate), tables bf16; w8a8emb4: the "
            "same with int4 tables and head; "
            "gguf: one file for llama.cpp, linears and tables in Q4_0")
      ->required();
  const std::map<std::string, repack::GgufTables> tables = {{"q4_0", repack::GgufTables::kQ40},
                                                            {"q6_k", repack::GgufTables::kQ6K},
                                                            {"bf16", repack::GgufTables::kBf16}};
  AddChoice(command, "--embeddings", &run->embeddings, tables,
            "gguf: type of the embedding tables. q4_0 (default) and bf16 hold the source's "
            "values, q6_k rounds them");
  const std::map<std::string, DType> scale_dtypes = {{"fp16", DType::kF16}, {"bf16", DType::kBF16}};
  AddChoice(command, "--scale-dtype", &run->options.scale_dtype, scale_dtypes,
            "fp16 (default) or bf16. Exact where some scale of that type gives every value "
            "back: with fp16 scales behind the source, as in Q4_0, fp16 does for all groups, "
            "bf16 for about half. Loaders cast scales to the run's dtype: run fp16 scales in "
            "float16");
  const std::map<std::string, repack::Rounding> roundings = {{"none", repack::Rounding::kNone},
                                                             {"minmax", repack::Rounding::kMinMax}};
  AddChoice(command, "--rounding", &run->options.rounding, roundings,
            "none (default): codes are recovered, nothing is rounded. minmax: LOSSY, for "
            "comparisons only: int4 with scale = amax / 7.5 per group, as usual exports do");
}

}  // namespace

void AddRepack(CLI::App& root, Action* action) {
  auto run = std::make_shared<RepackOptions>();
  CLI::App* command = root.add_subcommand(
      "repack", "Write a QAT checkpoint as int4 without rounding it a second time, or as int8");
  command->add_option("SRC", run->source, "Model directory with bf16 values on the grid")
      ->required();
  command->add_option("OUT", run->out, "Directory to write: new or empty; gguf: a new file")
      ->required();
  AddFormatFlags(command, run.get());
  command->add_flag("--keep-towers", run->options.keep_towers,
                    "Keep vision and audio towers and the multimodal architecture; gguf: in a file "
                    "of their own beside OUT, mmproj-NAME-BF16.gguf, for llama.cpp's --mmproj");
  command->add_flag("--allow-offgrid", run->options.allow_off_grid,
                    "Round groups that are off the grid, and count them, instead of stopping");
  command
      ->add_option("--tensor-parallel", run->options.tensor_parallel,
                   "Devices that will share each layer: int4 linears that they cannot split into "
                   "whole groups stay in bf16")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_flag("--dry-run", run->options.dry_run, "Say what would be written; write nothing");
  command->add_option("--threads", run->options.n_threads, "Threads (default: the cores available)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--max-memory", run->max_memory,
                      "Resident memory at most (default: 1GiB; about 250MiB are enough for full "
                      "speed)");
  command->add_option("--max-shard-size", run->max_shard_size,
                      "Start another file before one gets larger than this (default: 4GiB)");
  command->add_flag(
      "--resume", run->options.resume,
      "Go on with OUT.partial of an interrupted run, from the shards it finished or, gguf, "
      "from where it was");
  command->add_flag("--json", run->as_json, "Print the report as JSON");
  command->callback([run, action] { *action = [run] { return RunRepack(*run); }; });
}

}  // namespace nibble::cli
