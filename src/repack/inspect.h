// `nibble inspect`: what a checkpoint is made of, and whether its matrices lie on the 4-bit grid.
// Tested by tests/interop/test_cli_repack.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/progress.h"
#include "base/result.h"
#include "repack/grid_counts.h"

namespace nibble::repack {

struct PartAnatomy {
  std::string part;  // gemma::Name(Part), or "other" for names of no known part
  uint64_t n_tensors = 0;
  uint64_t n_bytes = 0;
  std::map<std::string, uint64_t> bytes_by_dtype;
};

struct TensorGrid {
  std::string name;
  GridCounts counts;                 // with bf16 scales
  uint64_t n_exact_groups_fp16 = 0;  // groups that some fp16 scale gives back in full
};

// A tensor whose name no Gemma 4 layout has, or that config.json's model has no place for.
struct UnknownTensor {
  std::string name;
  uint64_t n_bytes = 0;
};

struct Anatomy {
  std::string architecture;        // of config.json; "" if there is none
  std::string format;              // "bf16", "q4w4a16", "q4w4a16emb4", or what else it is
  std::vector<PartAnatomy> parts;  // those that occur, in the order of gemma::Part
  uint64_t n_bytes = 0;
  std::optional<std::string> duplicate_head;  // tensor of lm_head with embed_tokens' very bytes
  std::vector<UnknownTensor> unknown;         // in the order of the files
  std::string basis;  // what was assumed about the checkpoint's origin, and why

  bool has_grid = false;  // the rest is filled
  std::vector<TensorGrid> tensors;
  GridCounts totals;
  uint64_t n_exact_groups_fp16 = 0;
  std::optional<std::string> first_fault;  // the first group off the grid or not finite

  Json ToJson() const;
};

// `path`: a model directory, one .safetensors or one .gguf file (whose dtypes are ggml's types).
// With `with_grid`, every bf16 matrix of the text model that QAT quantises is searched for its
// grid.
Result<Anatomy> Inspect(const std::filesystem::path& path, bool with_grid, int n_threads,
                        const ProgressFn& progress);

}  // namespace nibble::repack
