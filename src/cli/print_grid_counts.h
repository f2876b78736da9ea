// What a repack found of the grid, in lines on stdout.
#pragma once

#include "base/dtype.h"
#include "repack/grid_counts.h"

namespace nibble::cli {

void PrintGridCounts(const repack::GridCounts& totals, DType scale_dtype);

}  // namespace nibble::cli
