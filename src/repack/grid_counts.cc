#include "repack/grid_counts.h"

#include <algorithm>

namespace nibble::repack {

void GridCounts::Add(const GridGroup& group) {
  const bool is_off_grid = group.outcome == Outcome::kOffGrid;
  const bool is_not_finite = group.outcome == Outcome::kNotFinite;
  const bool is_zero = group.outcome == Outcome::kZero;
  ++n_groups;
  n_values += kGridGroup;
  n_exact_groups += is_zero || group.outcome == Outcome::kExact ? 1 : 0;
  n_nearest_groups += group.outcome == Outcome::kNearest ? 1 : 0;
  n_off_grid_groups += is_off_grid ? 1 : 0;
  n_not_finite_groups += is_not_finite ? 1 : 0;
  n_zero_groups += is_zero ? 1 : 0;
  n_negative_scales += !is_zero && (group.scale_bits & 0x8000) != 0 ? 1 : 0;
  n_inexact_values += group.n_inexact;
  n_zero_sign_lost += group.n_zero_sign_lost;
  worst_ulp = std::max(worst_ulp, group.worst_ulp);
  if (!is_off_grid && !is_not_finite) ++n_by_peak_code[group.peak_code];
}

void GridCounts::Add(const GridSums& sums) {
  n_groups += sums.n_groups;
  n_values += sums.n_groups * kGridGroup;
  n_exact_groups += sums.n_exact;
  n_nearest_groups += sums.n_groups - sums.n_exact;
  n_negative_scales += sums.n_negative_scales;
  n_inexact_values += sums.n_inexact_values;
  n_zero_sign_lost += sums.n_zero_sign_lost;
  worst_ulp = std::max(worst_ulp, sums.worst_ulp);
  for (size_t i = 0; i < n_by_peak_code.size(); ++i) n_by_peak_code[i] += sums.n_by_peak_code[i];
}

void GridCounts::Merge(const GridCounts& other) {
  n_groups += other.n_groups;
  n_exact_groups += other.n_exact_groups;
  n_nearest_groups += other.n_nearest_groups;
  n_off_grid_groups += other.n_off_grid_groups;
  n_not_finite_groups += other.n_not_finite_groups;
  n_zero_groups += other.n_zero_groups;
  n_negative_scales += other.n_negative_scales;
  n_values += other.n_values;
  n_inexact_values += other.n_inexact_values;
  n_zero_sign_lost += other.n_zero_sign_lost;
  worst_ulp = std::max(worst_ulp, other.worst_ulp);
  for (size_t i = 0; i < n_by_peak_code.size(); ++i) n_by_peak_code[i] += other.n_by_peak_code[i];
}

Json GridCounts::ToJson() const {
  return {{"groups", n_groups},
          {"groups_exact", n_exact_groups},
          {"groups_nearest_scale", n_nearest_groups},
          {"groups_off_grid", n_off_grid_groups},
          {"groups_not_finite", n_not_finite_groups},
          {"groups_zero", n_zero_groups},
          {"negative_scales", n_negative_scales},
          {"values", n_values},
          {"values_bit_identical", n_bit_identical()},
          {"values_inexact", n_inexact_values},
          {"zeros_of_other_sign", n_zero_sign_lost},
          {"worst_ulp", worst_ulp},
          {"peak_codes", n_by_peak_code}};
}

}  // namespace nibble::repack
