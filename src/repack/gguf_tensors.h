// The tensors of a GGUF export: which type each gets, and a source tensor's rows as blocks of it.
// Tested by gguf_export_test.cc and tests/interop/test_gguf.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/gguf.h"
#include "gemma/config.h"
#include "gemma/gguf_towers.h"
#include "gemma/tensors.h"
#include "repack/grid_counts.h"
#include "repack/plan.h"

namespace nibble::repack {

// How the embedding tables and an untied head are written.
enum class GgufTables { kQ40, kQ6K, kBf16 };

struct GgufOutput {
  const checkpoint::Tensor* source = nullptr;  // null: the rope factors
  gemma::Part part = gemma::Part::kBody;
  checkpoint::GgufTensor tensor;  // name, type, dims, size_bytes
  std::string why;                // why it is of a larger type than was asked for; mostly ""
  gemma::TowerChange change = gemma::TowerChange::kNone;  // if not kNone, the type is F32
};

// One output for each text tensor that the plan (of Format::kGguf) packs or copies, in its order,
// and the rope factors last. Linears and banks are Q4_0, tables as `tables` says, norms, scalars
// and the router F32. Matrices whose rows do not divide into blocks stay bf16.
Result<std::vector<GgufOutput>> GgufOutputs(const Plan& plan, const gemma::Config& config,
                                            GgufTables tables);

// Rows of an output's source (all dimensions but the last made one), and as many of the output.
int64_t GgufRows(const GgufOutput& output);

// The bytes that EncodeGgufRows() needs to work in, beside those that it makes.
size_t GgufScratchBytes(const GgufOutput& output, int64_t n_rows);

// Writes rows [row_begin, row_end) to `bytes`, of their size. Adds to `counts` what the grid's
// recovery found (Q4_0). Errors name tensor, row and group: off the grid (unless
// options.allow_off_grid), not finite, out of the range of fp16.
Status EncodeGgufRows(const GgufOutput& output, int64_t row_begin, int64_t row_end,
                      const Options& options, std::span<std::byte> bytes,
                      std::span<std::byte> scratch, ThreadPool& pool, GridCounts* counts);

}  // namespace nibble::repack
