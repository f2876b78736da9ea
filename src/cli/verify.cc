// nibble verify: proves that a packed checkpoint stands for its source.
#include "repack/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "cli/command.h"
#include "cli/units.h"

namespace nibble::cli {
namespace {

struct VerifyOptions {
  std::string source;
  std::string out;
  int n_threads = AvailableCores();
  bool as_json = false;
};

void PrintReport(const repack::VerifyReport& report) {
  constexpr size_t kMaxShownFaults = 20;
  size_t width = 0;
  for (const repack::VerifiedTensor& tensor : report.tensors) {
    if (tensor.counts.n_groups > 0) width = std::max(width, tensor.source.size());
  }
  fmt::print("{:<{}} {:>10} {:>10} {:>13} {:>5}\n", "packed tensor", width, "groups", "proven",
             "bit-identical", "ulp");
  const auto print_row = [width](const std::string& name, const repack::ProofCounts& counts) {
    fmt::print("{:<{}} {:>10} {:>10} {:>13} {:>5}\n", name, width, counts.n_groups,
               FormatShare(counts.n_right_groups, counts.n_groups),
               FormatShare(counts.n_bit_identical, counts.n_values), counts.worst_ulp);
  };
  std::map<std::string, size_t> accounts;
  for (const repack::VerifiedTensor& tensor : report.tensors) {
    ++accounts[tensor.found_as];
    if (tensor.counts.n_groups > 0) print_row(tensor.source, tensor.counts);
  }
  print_row("total", report.totals);
  fmt::print("\nsource tensors:");
  for (const auto& [account, n_tensors] : accounts) fmt::print(" {} {};", n_tensors, account);
  fmt::print(" {} in all\n", report.tensors.size());
  if (report.totals.n_zero_sign_lost > 0) {
    fmt::print("zeros read back with the other sign: {}\n", report.totals.n_zero_sign_lost);
  }
  if (report.is_right()) {
    fmt::print(
        "VERIFIED: every code is right; {} of the values bit-identical under bf16(code x {} "
        "scale), worst {} bf16 steps\n",
        FormatShare(report.totals.n_bit_identical, report.totals.n_values), report.scale_dtype,
        report.totals.worst_ulp);
    return;
  }
  for (size_t i = 0; i < std::min(report.faults.size(), kMaxShownFaults); ++i) {
    fmt::print("WRONG: {}\n", report.faults[i]);
  }
  if (report.faults.size() > kMaxShownFaults) {
    fmt::print("and {} more\n", report.faults.size() - kMaxShownFaults);
  }
}

Result<int> RunVerify(const VerifyOptions& options) {
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
  return report.is_right() ? kDone : kAnswerIsNo;
}

}  // namespace

void AddVerify(CLI::App& root, Action* action) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command = root.add_subcommand(
      "verify",
      "Prove that a packed checkpoint stands for its bf16 source (exit 1 if it does not)");
  command->add_option("SRC", options->source, "The bf16 model directory")->required();
  command->add_option("OUT", options->out, "The packed model directory")->required();
  command->add_option("--threads", options->n_threads, "Threads (default: the cores available)")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", options->as_json, "Print JSON");
  command->callback([options, action] { *action = [options] { return RunVerify(*options); }; });
}

}  // namespace nibble::cli
