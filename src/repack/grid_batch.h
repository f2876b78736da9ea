// Grid recovery in bulk: the contract between pack_rows and one file per instruction set.
//
// RecoverGroup (grid.h) is the truth. The functions here do the usual groups many at a time, with
// the same codes, scales and counts bit for bit, and leave the others to it. Plain types only, as
// this is included where code is compiled for newer CPUs. Tested by grid_batch_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::repack {

// Consecutive groups, and where their results go.
struct GridBatch {
  const std::byte* source = nullptr;  // 64 bytes a group: 32 bf16 values
  int64_t n_groups = 0;
  bool is_fp16 = false;         // the scales' dtype: F16, else BF16
  std::byte* packed = nullptr;  // 16 bytes a group, as formats::PackGroup writes them
  std::byte* scales = nullptr;  // 2 bytes a group
};

// Over groups that are on the grid and not all zero.
struct GridSums {
  uint64_t n_groups = 0;
  uint64_t n_exact = 0;  // the others: codes exact, the nearest scale
  uint64_t n_negative_scales = 0;
  uint64_t n_inexact_values = 0;
  uint64_t n_zero_sign_lost = 0;
  uint64_t n_by_peak_code[9] = {};
  uint32_t worst_ulp = 0;
};

// Writes the indices of groups left over to `left_over` (room for n_groups; ascending; packed and
// scales hold anything there), adds the others to `sums`, returns how many are left over.
int64_t RecoverBatchAvx2(const GridBatch& batch, uint32_t* left_over, GridSums* sums);
int64_t RecoverBatchAvx512(const GridBatch& batch, uint32_t* left_over, GridSums* sums);

}  // namespace nibble::repack
