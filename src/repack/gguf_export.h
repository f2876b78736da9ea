// `nibble repack --format gguf`: a bf16 QAT checkpoint as a file for llama.cpp, and with
// --keep-towers a second one beside it (gguf_towers.h), which changes nothing in the first.
//
// Linears become Q4_0 with their own codes and an fp16 scale for which d * code rounds to the
// source's bf16 (repack/grid.h), so that nothing is rounded a second time. Streams (gguf_stream.h):
// of the tensors, a few slices of rows are in memory, as options.max_memory_bytes allows. The bytes
// depend on source and options only, not on threads or memory. A file is FILE.partial until it is
// whole, and what a killed run has written is there for the next (output_file.h).
// Tested by gguf_export_test.cc, tests/interop/test_gguf.py against llama.cpp and gguf-py, and
// tests/interop/test_scale.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "base/result.h"
#include "checkpoint/gguf.h"
#include "repack/gguf_tensors.h"

namespace nibble::repack {

struct GgufTensorReport {
  GgufOutput output;  // its source is not to be followed: the checkpoint is closed
  std::string source;
  uint64_t source_bytes = 0;
  GridCounts counts;  // Q4_0
};

// What stands together in the table of sizes: tensors of one part and one type.
struct GgufGroup {
  gemma::Part part = gemma::Part::kBody;
  std::string type;
  uint64_t n_tensors = 0;
  uint64_t n_bytes = 0;
};

struct GgufReport {
  Options options;
  std::string file;                       // its path
  std::vector<GgufTensorReport> tensors;  // in the file's order
  std::vector<std::string> dropped;       // "NAME: why", source tensors that the file lacks
  GridCounts totals;
  uint64_t source_bytes = 0;   // of all its tensors; the towers' report: of the towers
  uint64_t padding_bytes = 0;  // between tensors
  uint64_t header_bytes = 0;
  uint64_t file_bytes = 0;        // header, tensors and padding
  std::string sha256;             // of the file
  uint64_t taken_over_bytes = 0;  // that an interrupted run had written; not in ToJson()

  std::vector<GgufGroup> Groups() const;
  Json ToJson() const;
};

struct GgufExport {
  GgufReport text;
  std::optional<GgufReport> towers;  // with options.keep_towers

  Json ToJson() const;  // the text's, with the towers' as "towers"
};

// `out` ends in ".gguf"; neither it nor its gemma::GgufTowersPath() may exist. `tokenizer`:
// metadata to add ("tokenizer.*"). Errors: those of MakePlan, gemma::GgufConfig, GgufTowerOutputs
// and EncodeGgufRows; options that the format has no place for. An error of the input leaves
// nothing behind, any other what options.resume goes on with.
Result<GgufExport> ExportGguf(const std::filesystem::path& source, const std::filesystem::path& out,
                              const Options& options, GgufTables tables,
                              std::vector<checkpoint::GgufEntry> tokenizer,
                              const ProgressFn& progress);

}  // namespace nibble::repack
