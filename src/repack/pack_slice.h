// Rows of a planned tensor as the bytes that the output holds for them, whatever its encoding: what
// a writer calls, slice by slice, without knowing one encoding from another.
// Tested by repack_test.cc and tests/interop/test_repack.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "repack/grid_counts.h"
#include "repack/plan.h"
#include "repack/rounding.h"

namespace nibble::repack {

// What packing found.
struct PackCounts {
  GridCounts grid;         // of what was recovered from its grid
  RoundingError rounding;  // of what was rounded by rule

  void Merge(const PackCounts& other);
};

// Packs rows [row_begin, row_end), counted from tensor.row_begin, of a tensor with Action::kPack.
// codes and scales: the bytes of these rows in the first and the second of OutputTensors(). Adds to
// counts; slices are to be packed in order. The error names tensor, row and group or column.
Status PackSlice(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                 const Options& options, std::span<std::byte> codes, std::span<std::byte> scales,
                 ThreadPool& pool, PackCounts* counts);

// The bytes of OutputTensors() from the third on (none for some encodings).
std::vector<std::byte> PackTail(const PlannedTensor& tensor);

}  // namespace nibble::repack
