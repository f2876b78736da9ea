// `nibble verify`: proof that a packed checkpoint stands for its bf16 source, and the measure of
// one that does not. Reopens both from disk and shares no code with the repack: its own unpacking,
// its own interval test (verify_group.h), its own int8 rule (verify_int8.h), its own accounting of
// names.
//
// Any compressed-tensors checkpoint of the same model is understood, whoever made it: linears
// packed as int4 (symmetric, groups of a multiple of 32) or int8 (symmetric, per channel), expert
// banks cut into linears per expert, tables packed or plain, text-only or multimodal names. What is
// not the source's, or not as good as its encoding allows, is a fault; the rest is measured all the
// same. Tested by repack_test.cc, tests/interop/test_cli_repack.py and test_measure.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "base/result.h"
#include "repack/verify_int4.h"
#include "repack/verify_measure.h"

namespace nibble::repack {

// What was found of one source tensor (of a bank: of all its experts together).
struct VerifiedTensor {
  std::string source;
  std::string found_as;  // "packed", "rounded to int8", "copied", "dropped: tower", ..., "missing"
  ProofCounts counts;    // int4
  Measurement measured;  // int4 and int8
};

struct VerifyReport {
  std::string scale_dtype;              // of int4, as stored; "" if there is none
  std::vector<VerifiedTensor> tensors;  // in the source's order
  std::vector<std::string> faults;      // in the order of the tensors, then names, then config
  ProofCounts totals;                   // over int4
  Measurement int4;                     // totals
  Measurement int8;

  bool is_right() const { return faults.empty(); }
  Json ToJson() const;
};

// Errors: one of the two cannot be read. What differs is in the report: each tensor's first place
// (tensor, row, group, column) is one fault.
Result<VerifyReport> Verify(const std::filesystem::path& source,
                            const std::filesystem::path& output, int n_threads,
                            const ProgressFn& progress);

}  // namespace nibble::repack
