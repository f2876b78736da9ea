// What becomes of every source tensor, decided before a byte is written. Tested by plan_test.cc and
// tests/interop/test_cli_repack.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "gemma/config.h"
#include "gemma/tensors.h"

namespace nibble::repack {

enum class Format {
  kQ4W4A16,      // every linear in int4, tables bf16
  kQ4W4A16Emb4,  // both tables and an untied head as well
  kW8A8,         // every linear in int8, not exact; tables bf16
  kW8A8Emb4,     // the same, both tables and an untied head in int4
  kGguf,         // one file for llama.cpp (gguf_export.h): as emb4, banks and a tied table whole
};
std::string_view Name(Format format);

// How a packed matrix is stored (formats/).
enum class Encoding {
  kInt4Group32,  // X.weight_packed, X.weight_scale, X.weight_shape
  kInt8Channel,  // X.weight, X.weight_scale
};
std::string_view Name(Encoding encoding);

// How int4 codes are found.
enum class Rounding {
  kNone,    // recovered from the grid, exactly
  kMinMax,  // scale amax / 7.5, as usual exports choose it: lossy, for comparisons
};

struct Options {
  Format format = Format::kQ4W4A16;
  DType scale_dtype = DType::kF16;  // of int4, or kBF16; int8 has float32 scales
  Rounding rounding = Rounding::kNone;
  bool keep_towers = false;
  bool allow_off_grid = false;
  bool dry_run = false;
  // Devices that will share each layer: what they split along K (o_proj, down_proj) has to divide
  // into groups on each of them.
  int tensor_parallel = 1;
  int n_threads = 1;
  uint64_t max_shard_bytes = uint64_t{4} << 30;   // the next tensor goes to another file
  uint64_t max_memory_bytes = uint64_t{1} << 30;  // resident at most
  bool resume = false;  // go on with what an interrupted run left (output_directory.h)
};

enum class Action {
  kPack,
  kCopy,               // byte for byte
  kDropTower,          // vision or audio, in a text-only output
  kDropLeftover,       // K/V of a KV-shared layer
  kDropDuplicateHead,  // lm_head of a tied model, identical to embed_tokens
};
std::string_view Name(Action action);

struct PlannedTensor {
  const checkpoint::Tensor* source = nullptr;  // owned by the Checkpoint
  Action action = Action::kCopy;
  gemma::Part part = gemma::Part::kBody;
  std::string output;  // kPack: the module (without ".weight"); kCopy: the tensor; dropped: ""
  // kPack: rows [row_begin, row_begin + n_rows) of the source seen as [rows, K], all but the last
  // dimension made one.
  Encoding encoding = Encoding::kInt4Group32;
  int64_t row_begin = 0;
  int64_t n_rows = 0;

  int64_t n_columns() const { return source->info.shape.back(); }  // K
  // Of the rows that this entry stands for; the whole tensor unless kPack.
  uint64_t source_bytes() const;

  // The tensors that the output file holds for this one, in order.
  std::vector<checkpoint::TensorInfo> OutputTensors(DType scale_dtype) const;
};

struct Plan {
  // In the source's order on disk. Every source tensor stands here once, except that emb4 packs a
  // tied embed_tokens twice, the second time as lm_head, and that an expert bank becomes one entry
  // per expert and projection; in gguf both stand once.
  std::vector<PlannedTensor> tensors;
  // Linears of the text model (in gguf, all matrices) that stay bf16 because their K does not
  // divide into groups of 32, on each device (modules, as the output names them).
  std::vector<std::string> unpacked_linears;
  // Towers in the output, as "vision_tower": the component after "model.".
  std::vector<std::string> kept_towers;
};

// Errors: tensors missing, of unexpected shape or dtype, or unknown; a tied model with another
// head; in emb4, a table whose row is not a multiple of 32.
Result<Plan> MakePlan(const checkpoint::Checkpoint& source, const gemma::Config& config,
                      const Options& options);

// Splits plan.tensors into shards of at most `max_bytes` (a single tensor may exceed it): the index
// one past each shard's last tensor.
std::vector<size_t> SplitShards(const Plan& plan, DType scale_dtype, uint64_t max_bytes);

}  // namespace nibble::repack
