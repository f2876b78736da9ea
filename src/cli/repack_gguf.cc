#include "cli/repack_gguf.h"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "base/stopwatch.h"
#include "cli/command.h"
#include "cli/model_files.h"
#include "cli/print_grid_counts.h"
#include "cli/run_facts.h"
#include "cli/units.h"

namespace nibble::cli {
namespace {

void PrintSizes(const repack::GgufReport& report) {
  fmt::print("{:<12} {:<6} {:>8} {:>14}\n", "part", "type", "tensors", "bytes");
  uint64_t total_bytes = report.padding_bytes;
  for (const repack::GgufGroup& group : report.Groups()) {
    fmt::print("{:<12} {:<6} {:>8} {:>14}\n", gemma::Name(group.part), group.type, group.n_tensors,
               group.n_bytes);
    total_bytes += group.n_bytes;
  }
  fmt::print("{:<28} {:>14}\n", "padding", report.padding_bytes);
  fmt::print("{:<28} {:>14}, from {}\n", "total", total_bytes, report.source_bytes);
  fmt::print("{:<28} {:>14}\n{:<28} {:>14}\n", "header", report.header_bytes, "file",
             report.file_bytes);
}

void PrintReport(const std::filesystem::path& source, const repack::GgufExport& written) {
  const repack::GgufReport& report = written.text;
  fmt::print("{} -> {}: gguf{}\n\n", source.string(), report.file,
             report.options.dry_run ? " (dry run, nothing written)" : "");
  PrintSizes(report);
  fmt::print("dropped: {} tensors\n", report.dropped.size());
  for (const repack::GgufTensorReport& tensor : report.tensors) {
    if (tensor.output.why.empty()) continue;
    fmt::print("left in bf16: {} ({})\n", tensor.output.tensor.name, tensor.output.why);
  }
  if (!HasTokenizer(source)) {
    fmt::print("{} has no tokenizer.json: the file holds no vocabulary\n", source.string());
  }
  if (!report.options.dry_run) PrintGridCounts(report.totals, DType::kF16);
  if (!written.towers.has_value()) return;
  fmt::print("\ntowers -> {}\n\n", written.towers->file);
  PrintSizes(*written.towers);
  fmt::print("\nllama-server -m {} --mmproj {}\n", report.file, written.towers->file);
}

}  // namespace

Result<int> RunRepackGguf(const std::filesystem::path& source, const std::filesystem::path& out,
                          const repack::Options& options, repack::GgufTables tables, bool as_json) {
  const Stopwatch stopwatch;
  NIBBLE_ASSIGN_OR_RETURN(std::vector<checkpoint::GgufEntry> tokenizer, GgufTokenizer(source));
  ProgressBar bar("repack");
  const auto written =
      repack::ExportGguf(source, out, options, tables, std::move(tokenizer),
                         [&](uint64_t done, uint64_t total) { bar.Update(done, total); });
  bar.Finish();
  if (!written.has_value()) return std::unexpected(written.error());
  const RunFacts facts = {.seconds = stopwatch.seconds(),
                          .source_bytes = written->text.source_bytes};
  uint64_t taken_over_bytes = written->text.taken_over_bytes;
  uint64_t file_bytes = written->text.file_bytes;
  if (written->towers.has_value()) {
    taken_over_bytes += written->towers->taken_over_bytes;
    file_bytes += written->towers->file_bytes;
  }
  if (as_json) {
    Json json = written->ToJson();
    json["run"] = facts.ToJson(options);
    json["run"]["bytes_taken_over"] = taken_over_bytes;
    fmt::print("{}\n", json.dump(2));
  } else {
    PrintReport(source, *written);
  }
  std::fflush(stdout);
  if (options.dry_run) return kDone;
  facts.Print(options);
  if (taken_over_bytes > 0) {
    fmt::print(stderr, "{} of {} were written before\n", FormatBytes(taken_over_bytes),
               FormatBytes(file_bytes));
  }
  return kDone;
}

}  // namespace nibble::cli
