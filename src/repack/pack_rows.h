// Rows of one bf16 matrix through the grid: recovered, packed and counted, in parallel.
// Tested by repack_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "repack/grid.h"
#include "repack/grid_counts.h"

namespace nibble::repack {

// A bf16 tensor seen as [n_rows, n_columns], n_columns the last dimension and a multiple of 32.
struct Matrix {
  const checkpoint::Tensor* tensor = nullptr;
  int64_t n_rows = 0;
  int64_t n_columns = 0;

  int64_t groups_per_row() const { return n_columns / kGridGroup; }
};

// CHECKs that the tensor is bf16 of rank >= 1 with a last dimension that is a multiple of 32.
Matrix AsMatrix(const checkpoint::Tensor& tensor);

// A group that stops a repack.
struct Fault {
  int64_t row = 0;
  int64_t group_idx = 0;  // within the row
  Outcome outcome = Outcome::kOffGrid;
};

struct PackedRows {
  GridCounts counts;
  std::optional<Fault> first_fault;  // by row, then group
};

// Recovers rows [row_begin, row_end). `packed` (16 bytes a group) and `scales` (2 bytes a group)
// receive these rows, or both are empty: then nothing is stored. With `round_off_grid`, groups off
// the grid are rounded and counted; without, each is a fault. NaN, infinity and scales out of range
// always are.
PackedRows PackRows(const Matrix& matrix, int64_t row_begin, int64_t row_end, DType scale_dtype,
                    bool round_off_grid, std::span<std::byte> packed, std::span<std::byte> scales,
                    ThreadPool& pool);

// One line: tensor, row, group, what is wrong there and by how much.
std::string Describe(const Matrix& matrix, const Fault& fault, DType scale_dtype);

}  // namespace nibble::repack
