// nibble verify: proves that a packed checkpoint stands for its source, and measures one that does
// not.
#include "repack/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "checkpoint/checksums.h"
#include "checkpoint/gguf_file.h"
#include "cli/command.h"
#include "cli/units.h"
#include "cli/verify_gguf.h"

namespace nibble::cli {
namespace {

struct VerifyOptions {
  std::string source;
  std::string out;
  int n_threads = AvailableCores();
  bool as_json = false;
};

std::string FormatSnr(const repack::Measurement& measured) {
  const std::optional<double> snr_db = measured.snr_db();
  return snr_db.has_value() ? fmt::format("{:.1f} dB", *snr_db) : "-";
}

void PrintRow(const std::string& name, size_t width, const repack::ProofCounts& counts,
              const repack::Measurement& measured) {
  const bool is_int4 = counts.n_groups > 0;
  fmt::print("{:<{}} {:>10} {:>9} {:>13} {:>5} {:>8.3f} % {:>8} {:>9}\n", name, width,
             is_int4 ? fmt::format("{}", counts.n_groups) : "int8",
             is_int4 ? FormatShare(counts.n_right_groups, counts.n_groups) : "-",
             is_int4 ? FormatShare(counts.n_bit_identical, counts.n_values) : "-",
             is_int4 ? fmt::format("{}", counts.worst_ulp) : "-", 100 * measured.relative_error(),
             FormatSnr(measured), FormatShare(measured.n_moved, measured.n_levels));
}

void PrintTensors(const repack::VerifyReport& report) {
  size_t width = 0;
  for (const repack::VerifiedTensor& tensor : report.tensors) {
    if (tensor.measured.n_values > 0) width = std::max(width, tensor.source.size());
  }
  fmt::print("{:<{}} {:>10} {:>9} {:>13} {:>5} {:>10} {:>8} {:>9}\n", "packed tensor", width,
             "groups", "proven", "bit-identical", "ulp", "rel. error", "SNR", "moved");
  for (const repack::VerifiedTensor& tensor : report.tensors) {
    if (tensor.measured.n_values > 0)
      PrintRow(tensor.source, width, tensor.counts, tensor.measured);
  }
  if (report.int4.n_values > 0) PrintRow("total, int4", width, report.totals, report.int4);
  if (report.int8.n_values > 0) PrintRow("total, int8", width, {}, report.int8);
  std::map<std::string, size_t> accounts;
  for (const repack::VerifiedTensor& tensor : report.tensors) ++accounts[tensor.found_as];
  fmt::print("\nsource tensors:");
  for (const auto& [account, n_tensors] : accounts) fmt::print(" {} {};", n_tensors, account);
  fmt::print(" {} in all\n", report.tensors.size());
  if (report.totals.n_zero_sign_lost > 0) {
    fmt::print("zeros read back with the other sign: {}\n", report.totals.n_zero_sign_lost);
  }
}

// What an encoding cost; levels are codes with their scale's sign (repack/verify_measure.h).
void PrintMeasurement(const char* encoding, const repack::Measurement& measured) {
  if (measured.n_values == 0 || measured.sum_squared_error == 0) return;
  fmt::print("MEASURED, {}: relative error {:.3f} %, SNR {}, {} of the {} moved\n", encoding,
             100 * measured.relative_error(), FormatSnr(measured),
             FormatShare(measured.n_moved, measured.n_levels),
             std::string_view(encoding) == "int4" ? "levels" : "codes");
}

void PrintReport(const repack::VerifyReport& report) {
  constexpr size_t kMaxShownFaults = 20;
  PrintTensors(report);
  PrintMeasurement("int4", report.int4);
  PrintMeasurement("int8", report.int8);
  for (size_t i = 0; i < std::min(report.faults.size(), kMaxShownFaults); ++i) {
    fmt::print("WRONG: {}\n", report.faults[i]);
  }
  if (report.faults.size() > kMaxShownFaults) {
    fmt::print("and {} more\n", report.faults.size() - kMaxShownFaults);
  }
  if (!report.is_right()) return;
  if (report.int4.n_values > 0) {
    fmt::print(
        "VERIFIED: every int4 code is right; {} of the values bit-identical under bf16(code x {} "
        "scale), worst {} bf16 steps\n",
        FormatShare(report.totals.n_bit_identical, report.totals.n_values), report.scale_dtype,
        report.totals.worst_ulp);
  }
  if (report.int8.n_values > 0) {
    fmt::print(
        "VERIFIED: every int8 code is the source's value / (largest of its channel / 127), "
        "rounded: "
        "approximate, as measured above\n");
  }
}

Result<int> RunVerify(const VerifyOptions& options) {
  if (checkpoint::IsGgufPath(options.out)) {
    return RunVerifyGguf(options.source, options.out, options.n_threads, options.as_json);
  }
  // Beside the proof: it is one thread's work.
  auto checksums = std::async(std::launch::async, checkpoint::CheckSha256Sums, options.out);
  ProgressBar bar("verify");
  NIBBLE_ASSIGN_OR_RETURN(
      const repack::VerifyReport report,
      repack::Verify(options.source, options.out, options.n_threads,
                     [&](uint64_t done, uint64_t total) { bar.Update(done, total); }));
  bar.Finish();
  if (options.as_json) {
    fmt::print("{}\n", report.ToJson().dump(2));
  } else {
    PrintReport(report);
  }
  std::fflush(stdout);
  const Status files = checksums.get();
  if (!files.has_value()) fmt::print(stderr, "{}\n", files.error().message);
  return report.is_right() && files.has_value() ? kDone : kAnswerIsNo;
}

}  // namespace

void AddVerify(CLI::App& root, Action* action) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command = root.add_subcommand(
      "verify",
      "Prove that a packed checkpoint stands for its bf16 source (exit 1 if it does not), and "
      "measure its error; OUT may be any compressed-tensors export of SRC, int4 or int8");
  command->add_option("SRC", options->source, "The bf16 model directory")->required();
  command->add_option("OUT", options->out, "The packed model directory or .gguf file")->required();
  command->add_option("--threads", options->n_threads, "Threads (default: the cores available)")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", options->as_json, "Print JSON");
  command->callback([options, action] { *action = [options] { return RunVerify(*options); }; });
}

}  // namespace nibble::cli
