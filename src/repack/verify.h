// `nibble verify`: proof that a packed checkpoint stands for its bf16 source. Reopens both from
// disk and shares no code with the repack: its own unpacking, its own interval test
// (verify_group.h), its own accounting of names. Tested by repack_test.cc and
// tests/interop/test_cli_repack.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "base/result.h"

namespace nibble::repack {

// Sums and maxima over packed groups.
struct ProofCounts {
  uint64_t n_groups = 0;
  uint64_t n_right_groups = 0;  // codes and scale proven
  uint64_t n_wrong_codes = 0;   // groups whose codes no scale explains
  uint64_t n_negative_scales = 0;
  uint64_t n_values = 0;
  uint64_t n_bit_identical = 0;
  uint64_t n_zero_sign_lost = 0;  // zeros read back as the other zero: equal, not bit-identical
  uint32_t worst_ulp = 0;         // bf16 steps

  void Merge(const ProofCounts& other);
};

// What was found of one source tensor.
struct VerifiedTensor {
  std::string source;
  std::string found_as;  // "packed", "copied", "dropped: tower", ..., "missing"
  ProofCounts counts;    // packed
};

struct VerifyReport {
  std::string scale_dtype;              // as stored; "" if nothing is packed
  std::vector<VerifiedTensor> tensors;  // in the source's order
  std::vector<std::string> faults;      // in the order of the tensors, then names, then config
  ProofCounts totals;                   // over the packed tensors

  bool is_right() const { return faults.empty(); }
  Json ToJson() const;
};

// Errors: one of the two cannot be read. What differs is in the report: each tensor's first place
// (tensor, row, group, column) is one fault.
Result<VerifyReport> Verify(const std::filesystem::path& source,
                            const std::filesystem::path& output, int n_threads,
                            const ProgressFn& progress);

}  // namespace nibble::repack
