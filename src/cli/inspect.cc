// nibble inspect: anatomy of a checkpoint, and its grid.
#include "repack/inspect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/plan.h"
#include "cli/units.h"

namespace nibble::cli {
namespace {

struct InspectOptions {
  std::string path;
  bool with_grid = false;
  bool as_json = false;
  std::string plan_device;
  int n_threads = AvailableCores();
};

void PrintUnknown(const repack::Anatomy& anatomy) {
  if (anatomy.unknown.empty()) return;
  constexpr size_t kShown = 10;
  uint64_t n_bytes = 0;
  for (const repack::UnknownTensor& tensor : anatomy.unknown) n_bytes += tensor.n_bytes;
  fmt::print("\nNot part of the model that nibble knows: {} tensors, {} of the bytes\n",
             anatomy.unknown.size(), FormatShare(n_bytes, anatomy.n_bytes));
  for (size_t i = 0; i < std::min(anatomy.unknown.size(), kShown); ++i) {
    fmt::print("  {} ({})\n", QuoteForMessage(anatomy.unknown[i].name),
               FormatBytes(anatomy.unknown[i].n_bytes));
  }
  if (anatomy.unknown.size() > kShown)
    fmt::print("  and {} more\n", anatomy.unknown.size() - kShown);
}

void PrintAnatomy(const std::string& path, const repack::Anatomy& anatomy) {
  fmt::print("{}: {}{}{}\n\n", path, anatomy.format, anatomy.architecture.empty() ? "" : ", ",
             anatomy.architecture);
  fmt::print("{:<12} {:>8} {:>10} {:>9}  {}\n", "part", "tensors", "size", "share", "dtypes");
  for (const repack::PartAnatomy& part : anatomy.parts) {
    std::vector<std::string> dtypes;
    dtypes.reserve(part.bytes_by_dtype.size());
    for (const auto& [dtype, n_bytes] : part.bytes_by_dtype) dtypes.push_back(dtype);
    fmt::print("{:<12} {:>8} {:>10} {:>9}  {}\n", part.part, part.n_tensors,
               FormatBytes(part.n_bytes), FormatShare(part.n_bytes, anatomy.n_bytes),
               fmt::join(dtypes, " "));
  }
  fmt::print("{:<12} {:>8} {:>10}\n", "total", "", FormatBytes(anatomy.n_bytes));
  if (anatomy.duplicate_head.has_value()) {
    fmt::print("\n{} repeats embed_tokens byte for byte.\n", *anatomy.duplicate_head);
  }
  PrintUnknown(anatomy);
  fmt::print("\nOrigin: {}.\n", anatomy.basis);
}

void PrintGrid(const repack::Anatomy& anatomy) {
  const repack::GridCounts& totals = anatomy.totals;
  if (totals.n_groups == 0) {
    fmt::print("\nGrid: no bf16 matrices to search.\n");
    return;
  }
  const auto on_grid = [](const repack::GridCounts& counts) {
    return FormatShare(counts.n_groups - counts.n_off_grid_groups - counts.n_not_finite_groups,
                       counts.n_groups);
  };
  size_t width = 0;
  for (const repack::TensorGrid& tensor : anatomy.tensors) {
    width = std::max(width, tensor.name.size());
  }
  fmt::print("\n{:<{}} {:>10} {:>9} {:>10} {:>10}\n", "matrix", width, "groups", "on grid",
             "fp16 exact", "bf16 exact");
  for (const repack::TensorGrid& tensor : anatomy.tensors) {
    fmt::print("{:<{}} {:>10} {:>9} {:>10} {:>10}\n", tensor.name, width, tensor.counts.n_groups,
               on_grid(tensor.counts),
               FormatShare(tensor.n_exact_groups_fp16, tensor.counts.n_groups),
               FormatShare(tensor.counts.n_exact_groups, tensor.counts.n_groups));
  }
  fmt::print("{:<{}} {:>10} {:>9} {:>10} {:>10}\n", "total", width, totals.n_groups,
             on_grid(totals), FormatShare(anatomy.n_exact_groups_fp16, totals.n_groups),
             FormatShare(totals.n_exact_groups, totals.n_groups));

  const uint64_t n_coded = totals.n_groups - totals.n_off_grid_groups - totals.n_not_finite_groups -
                           totals.n_zero_groups;
  fmt::print("\nnegative scales  {}\nall-zero groups  {}\noff the grid     {}\n",
             FormatShare(totals.n_negative_scales, n_coded), totals.n_zero_groups,
             totals.n_off_grid_groups);
  if (totals.n_not_finite_groups > 0)
    fmt::print("NaN or infinity  {}\n", totals.n_not_finite_groups);
  fmt::print("largest code    ");
  for (int code = 1; code <= repack::kMaxPeakCode; ++code) {
    fmt::print(" {}: {}", code, FormatShare(totals.n_by_peak_code[code], n_coded));
    if (code < repack::kMaxPeakCode) fmt::print(",");
  }
  fmt::print("\n");
  if (anatomy.first_fault.has_value()) fmt::print("\nFirst: {}.\n", *anatomy.first_fault);
}

Result<int> RunInspect(const InspectOptions& options) {
  ProgressBar bar("inspect");
  NIBBLE_ASSIGN_OR_RETURN(
      const repack::Anatomy anatomy,
      repack::Inspect(options.path, options.with_grid, options.n_threads,
                      [&](uint64_t done, uint64_t total) { bar.Update(done, total); }));
  bar.Finish();
  if (options.as_json) {
    fmt::print("{}\n", anatomy.ToJson().dump(2));
  } else {
    PrintAnatomy(options.path, anatomy);
    if (anatomy.has_grid) PrintGrid(anatomy);
  }
  if (!options.plan_device.empty()) {
    fmt::print("\n");
    NIBBLE_ASSIGN_OR_RETURN(const int answer, PrintPlan(options.path, options.plan_device));
    if (answer != kDone) return answer;
  }
  return anatomy.first_fault.has_value() ? kAnswerIsNo : kDone;
}

}  // namespace

void AddInspect(CLI::App& root, Action* action) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = root.add_subcommand(
      "inspect",
      "Bytes and share of each part, dtypes, format; with --grid, how much of it lies on "
      "the 4-bit grid (exit 1 if a group does not)");
  command->add_option("PATH", options->path, "Model directory, .safetensors or .gguf file")
      ->required();
  command->add_flag("--grid", options->with_grid, "Search every bf16 matrix for its grid");
  command->add_option("--threads", options->n_threads, "Threads (default: the cores available)")
      ->check(CLI::Range(1, 1024));
  CLI::Option* json = command->add_flag("--json", options->as_json, "Print JSON");
  command
      ->add_option("--plan", options->plan_device,
                   "Also say what this device holds: `nibble plan PATH --device DEVICE`")
      ->excludes(json);
  command->callback([options, action] { *action = [options] { return RunInspect(*options); }; });
}

}  // namespace nibble::cli
