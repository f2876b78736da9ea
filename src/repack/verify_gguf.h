// `nibble verify SRC OUT.gguf`: proof that a GGUF file stands for its bf16 source, whoever made it.
//
// Shares no code with the export: its own names, its own reading of blocks. Q4_0 is proven group by
// group as int4 is (verify_int4.h), BF16, F16 and F32 hold the source's values or are a fault, Q6_K
// is measured, metadata and rope factors say what config.json says. Towers are proven where the
// file holds them, or one beside it does (verify_gguf_towers.h). Tested by gguf_export_test.cc and
// tests/interop/test_gguf.py.
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
  std::string found_as;  // a type ("Q4_0", "BF16, towers"), "missing", or why it need not be there
  ProofCounts counts;    // Q4_0
  Measurement measured;  // Q4_0 and Q6_K
};

struct GgufVerifyReport {
  std::vector<GgufVerifiedTensor> tensors;  // in the source's order
  std::vector<std::string> faults;
  ProofCounts totals;  // over Q4_0
  Measurement q4_0;
  Measurement q6_k;
  std::string towers_file;  // that was proven; "": none
  size_t n_tower_tensors = 0;

  bool is_right() const { return faults.empty(); }
  Json ToJson() const;
};

// `output`: a text model, proven with the file of its towers if gemma::GgufTowersPath() is there,
// or such a file alone. Errors: one of them cannot be read. What differs is in the report.
Result<GgufVerifyReport> VerifyGguf(const std::filesystem::path& source,
                                    const std::filesystem::path& output, int n_threads,
                                    const ProgressFn& progress);

}  // namespace nibble::repack
