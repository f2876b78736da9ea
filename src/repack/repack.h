// `nibble repack`: a bf16 QAT checkpoint in, a compressed-tensors checkpoint out, its values
// exactly those of the source wherever the scale's dtype allows it (repack/grid.h).
//
// Streams (output_shards.h): of the tensors, a few slices of rows are in memory, as
// options.max_memory_bytes allows. The output's bytes depend on source and options only, not on
// threads or memory. It is written to OUT.partial and renamed when whole, so OUT exists complete or
// not at all, and what a killed run has finished is there for the next (output_directory.h).
// Tested by repack_test.cc and tests/interop/test_repack.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "base/result.h"
#include "repack/pack_slice.h"
#include "repack/plan.h"

namespace nibble::repack {

struct TensorReport {
  std::string source;
  Action action = Action::kCopy;
  gemma::Part part = gemma::Part::kBody;
  std::string output;                          // as PlannedTensor::output
  Encoding encoding = Encoding::kInt4Group32;  // kPack
  std::vector<int64_t> shape;                  // of the source
  int64_t row_begin = 0;                       // as in PlannedTensor
  uint64_t source_bytes = 0;
  uint64_t output_bytes = 0;
  PackCounts counts;  // kPack
};

struct RepackReport {
  Options options;
  std::vector<TensorReport> tensors;  // as in Plan
  std::vector<std::string> unpacked_linears;
  std::vector<std::string> shards;        // file names
  size_t n_shards_taken_over = 0;         // that an interrupted run had finished; not in ToJson()
  std::vector<std::string> copied_files;  // tokenizer, chat template, ...
  std::string source_config_sha256;
  std::string source_fingerprint;  // checkpoint/fingerprint.h
  PackCounts totals;               // a table that is packed twice counts twice

  uint64_t source_bytes() const;  // of the tensors, each once
  uint64_t output_bytes() const;
  size_t CountOf(Action action) const;
  double packed_share() const;  // of the source's bytes of the text model
  std::vector<const TensorReport*> left_matrices() const;  // of the text model, copied as they are
  Json ToJson() const;

 private:
  // A tied table's entry as lm_head, whose source bytes were counted before.
  bool IsSecondPacking(size_t i) const;
  Json Coverage() const;
};

// Writes `out` (which must not exist, or be an empty directory) with nibble-report.json, the model
// card and SHA256SUMS inside. With options.dry_run nothing is written and no value is read: the
// report has no counts. An error of the input leaves nothing behind, any other (a full disk) what
// options.resume goes on with.
Result<RepackReport> Repack(const std::filesystem::path& source, const std::filesystem::path& out,
                            const Options& options, const ProgressFn& progress);

}  // namespace nibble::repack
