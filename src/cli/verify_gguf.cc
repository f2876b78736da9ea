#include "cli/verify_gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/progress.h"
#include "cli/command.h"
#include "cli/units.h"
#include "repack/verify_gguf.h"

namespace nibble::cli {
namespace {

void PrintVerified(const repack::GgufVerifyReport& report) {
  size_t width = 0;
  std::map<std::string, size_t> accounts;
  for (const repack::GgufVerifiedTensor& tensor : report.tensors) {
    ++accounts[tensor.found_as];
    if (tensor.measured.n_values > 0) width = std::max(width, tensor.source.size());
  }
  fmt::print("{:<{}} {:<6} {:>10} {:>13} {:>5} {:>10} {:>8}\n", "matrix", width, "type", "proven",
             "bit-identical", "ulp", "rel. error", "SNR");
  const auto print_row = [width](const std::string& name, const std::string& type,
                                 const repack::ProofCounts& counts,
                                 const repack::Measurement& measured) {
    const bool is_proven = counts.n_groups > 0;
    const auto snr_db = measured.snr_db();
    fmt::print("{:<{}} {:<6} {:>10} {:>13} {:>5} {:>8.3f} % {:>8}\n", name, width, type,
               is_proven ? FormatShare(counts.n_right_groups, counts.n_groups) : "-",
               is_proven ? FormatShare(counts.n_bit_identical, counts.n_values) : "-",
               is_proven ? fmt::format("{}", counts.worst_ulp) : "-",
               100 * measured.relative_error(), snr_db ? fmt::format("{:.1f} dB", *snr_db) : "-");
  };
  for (const repack::GgufVerifiedTensor& tensor : report.tensors) {
    if (tensor.measured.n_values == 0) continue;
    print_row(tensor.source, tensor.found_as, tensor.counts, tensor.measured);
  }
  if (report.totals.n_groups > 0) print_row("total", "Q4_0", report.totals, report.q4_0);
  if (report.q6_k.n_values > 0) print_row("total", "Q6_K", {}, report.q6_k);
  fmt::print("\nsource tensors:");
  for (const auto& [account, n_tensors] : accounts) fmt::print(" {} {};", n_tensors, account);
  fmt::print(" {} in all\n", report.tensors.size());
}

void PrintVerdict(const repack::GgufVerifyReport& report) {
  constexpr size_t kMaxShownFaults = 20;
  if (report.is_right()) {
    if (!report.towers_file.empty()) {
      fmt::print("VERIFIED: all values of {} tensors of the towers in {} are the source's\n",
                 report.n_tower_tensors, report.towers_file);
    }
    if (report.totals.n_values == 0) return;
    fmt::print(
        "VERIFIED: every Q4_0 code is right; {} of these values bit-identical under bf16(code x "
        "fp16 scale), worst {} bf16 steps\n",
        FormatShare(report.totals.n_bit_identical, report.totals.n_values),
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

}  // namespace

Result<int> RunVerifyGguf(const std::filesystem::path& source, const std::filesystem::path& out,
                          int n_threads, bool as_json) {
  ProgressBar bar("verify");
  NIBBLE_ASSIGN_OR_RETURN(
      const repack::GgufVerifyReport report,
      repack::VerifyGguf(source, out, n_threads,
                         [&](uint64_t done, uint64_t total) { bar.Update(done, total); }));
  bar.Finish();
  if (as_json) {
    fmt::print("{}\n", report.ToJson().dump(2));
  } else {
    PrintVerified(report);
    PrintVerdict(report);
  }
  return report.is_right() ? kDone : kAnswerIsNo;
}

}  // namespace nibble::cli
