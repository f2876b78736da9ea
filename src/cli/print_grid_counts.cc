#include "cli/print_grid_counts.h"

#include <fmt/format.h>

#include "cli/units.h"

namespace nibble::cli {

void PrintGridCounts(const repack::GridCounts& totals, DType scale_dtype) {
  fmt::print(
      "\n{} groups of 32: {} exact, {} with the nearest {} scale, {} all zero, {} negative\n",
      totals.n_groups, totals.n_exact_groups, totals.n_nearest_groups, Name(scale_dtype),
      totals.n_zero_groups, totals.n_negative_scales);
  fmt::print("{} values: {} bit-identical under bf16(code x scale), worst {} bf16 steps\n",
             totals.n_values, FormatShare(totals.n_bit_identical(), totals.n_values),
             totals.worst_ulp);
  if (totals.n_zero_sign_lost > 0) {
    fmt::print("{} zeros are read back with the other sign\n", totals.n_zero_sign_lost);
  }
  if (totals.n_off_grid_groups > 0) {
    fmt::print("{} groups were off the grid and have been rounded\n", totals.n_off_grid_groups);
  }
}

}  // namespace nibble::cli
