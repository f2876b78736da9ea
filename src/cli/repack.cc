// nibble repack: a bf16 QAT checkpoint to an exact 4-bit one.
#include "repack/repack.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/units.h"

namespace nibble::cli {
namespace {

struct RepackOptions {
  std::string source;
  std::string out;
  repack::Options options{.n_threads = AvailableCores()};
  bool as_json = false;
};

void PrintParts(const repack::RepackReport& report) {
  struct Row {
    size_t n_packed = 0;
    size_t n_copied = 0;
    uint64_t n_bytes = 0;
  };
  std::map<gemma::Part, Row> rows;
  for (const repack::TensorReport& tensor : report.tensors) {
    if (tensor.output.empty()) continue;
    Row& row = rows[tensor.part];
    (tensor.action == repack::Action::kPack ? row.n_packed : row.n_copied) += 1;
    row.n_bytes += tensor.output_bytes;
  }
  fmt::print("{:<12} {:>8} {:>8} {:>10}\n", "part", "packed", "copied", "size");
  for (const auto& [part, row] : rows) {
    fmt::print("{:<12} {:>8} {:>8} {:>10}\n", gemma::Name(part), row.n_packed, row.n_copied,
               FormatBytes(row.n_bytes));
  }
}

void PrintGrid(const repack::RepackReport& report) {
  const repack::GridCounts& totals = report.totals.grid;
  fmt::print(
      "\n{} groups of 32: {} exact, {} with the nearest {} scale, {} all zero, {} negative\n",
      totals.n_groups, totals.n_exact_groups, totals.n_nearest_groups,
      Name(report.options.scale_dtype), totals.n_zero_groups, totals.n_negative_scales);
  fmt::print("{} values: {} bit-identical under bf16(code x scale), worst {} bf16 steps\n",
             totals.n_values, FormatShare(totals.n_bit_identical(), totals.n_values),
             totals.worst_ulp);
  if (totals.n_zero_sign_lost > 0) {
    fmt::print("{} zeros are read back with the other sign\n", totals.n_zero_sign_lost);
  }
  if (totals.n_off_grid_groups > 0) {
    fmt::print("{} groups were off the grid and have been rounded\n", totals.n_off_grid_groups);
  }
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
    fmt::print("left in bf16: {} (its rows are not a multiple of 32)\n", module);
  }
  if (!report.options.dry_run) PrintGrid(report);
}

Result<int> RunRepack(const RepackOptions& run) {
  ProgressBar bar("repack");
  const auto report =
      repack::Repack(run.source, run.out, run.options,
                     [&](uint64_t done, uint64_t total) { bar.Update(done, total); });
  bar.Finish();
  if (!report.has_value()) return std::unexpected(report.error());
  if (run.as_json) {
    fmt::print("{}\n", report->ToJson().dump(2));
  } else {
    PrintReport(run, *report);
  }
  return kDone;
}

}  // namespace

void AddRepack(CLI::App& root, Action* action) {
  auto run = std::make_shared<RepackOptions>();
  CLI::App* command = root.add_subcommand(
      "repack", "Write a QAT checkpoint as int4 without rounding it a second time");
  command->add_option("SRC", run->source, "Model directory with bf16 values on the grid")
      ->required();
  command->add_option("OUT", run->out, "Directory to write: new or empty")->required();
  const std::map<std::string, repack::Format> formats = {
      {"q4w4a16", repack::Format::kQ4W4A16}, {"q4w4a16emb4", repack::Format::kQ4W4A16Emb4}};
  command
      ->add_option("--format", run->options.format,
                   "q4w4a16: linears in int4, tables bf16; q4w4a16emb4: tables and head as well")
      ->required()
      ->transform(CLI::CheckedTransformer(formats));
  const std::map<std::string, DType> scale_dtypes = {{"fp16", DType::kF16}, {"bf16", DType::kBF16}};
  command
      ->add_option(
          "--scale-dtype", run->options.scale_dtype,
          "fp16 (default) or bf16. Exact where some scale of that type gives every value "
          "back: with fp16 scales behind the source, as in Q4_0, fp16 does for all groups, "
          "bf16 for about half. Loaders cast scales to the run's dtype: run fp16 scales in "
          "float16")
      ->transform(CLI::CheckedTransformer(scale_dtypes));
  command->add_flag("--keep-towers", run->options.keep_towers,
                    "Keep vision and audio towers and the multimodal architecture");
  command->add_flag("--allow-offgrid", run->options.allow_off_grid,
                    "Round groups that are off the grid, and count them, instead of stopping");
  command->add_flag("--dry-run", run->options.dry_run, "Say what would be written; write nothing");
  command->add_option("--threads", run->options.n_threads, "Threads (default: the cores available)")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", run->as_json, "Print the report as JSON");
  command->callback([run, action] { *action = [run] { return RunRepack(*run); }; });
}

}  // namespace nibble::cli
