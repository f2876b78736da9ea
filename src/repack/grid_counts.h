// What recovering a tensor's grid found, in numbers; sums and maxima only, so that any order of
// adding gives the same. Tested by tests/interop/test_cli_repack.py.
#pragma once

#include <array>
#include <cstdint>

#include "base/json.h"
#include "repack/grid.h"
#include "repack/grid_batch.h"

namespace nibble::repack {

struct GridCounts {
  uint64_t n_groups = 0;
  uint64_t n_exact_groups = 0;    // all-zero ones included
  uint64_t n_nearest_groups = 0;  // codes exact, some values not
  uint64_t n_off_grid_groups = 0;
  uint64_t n_not_finite_groups = 0;
  uint64_t n_zero_groups = 0;
  uint64_t n_negative_scales = 0;  // of groups that are not all zero
  uint64_t n_values = 0;
  uint64_t n_inexact_values = 0;
  uint64_t n_zero_sign_lost = 0;                            // zeros read back as the other zero
  uint32_t worst_ulp = 0;                                   // bf16 steps
  std::array<uint64_t, kMaxPeakCode + 1> n_by_peak_code{};  // groups on the grid; 0: all-zero

  void Add(const GridGroup& group);
  void Add(const GridSums& sums);
  void Merge(const GridCounts& other);

  uint64_t n_bit_identical() const { return n_values - n_inexact_values - n_zero_sign_lost; }
  Json ToJson() const;
};

}  // namespace nibble::repack
