// `nibble verify SRC OUT.gguf`: proof that a GGUF file stands for its bf16 source, whoever made it.
//
// Shares no code with the export: its own names, its own reading of blocks. Q4_0 is proven group by
// group as int4 is (verify_int4.h), BF16, F16 and F32 hold the source's values or are a fault, Q6_K
// is measured, metadata and rope factors say what config.json says.
// Tested by gguf_export_test.cc and tests/interop/test_gguf.py.
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

struct GgufVerifiedTensor {
  std::string source;
  std::string found_as;  // a type ("Q4_0"), "missing", or why it need not be there
  ProofCounts counts;    // Q4_0
  Measurement measured;  // Q4_0 and Q6_K
};

struct GgufVerifyReport {
  std::vector<GgufVerifiedTensor> tensors;  // in the source's order
  std::vector<std::string> faults;
  ProofCounts totals;  // over Q4_0
  Measurement q4_0;
  Measurement q6_k;

  bool is_right() const { return faults.empty(); }
  Json ToJson() const;
};

// Errors: one of the two cannot be read. What differs is in the report.
Result<GgufVerifyReport> VerifyGguf(const std::filesystem::path& source,
                                    const std::filesystem::path& output, int n_threads,
                                    const ProgressFn& progress);

}  // namespace nibble::repack
