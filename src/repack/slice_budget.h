// How much of a model a repack has in memory at once: slices of rows, so large that a limit of
// resident memory is kept. Tested by tests/interop/test_scale.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace nibble::repack {

// Slices of source bytes that are in memory at once: one being packed, one read ahead, the pages of
// pieces that are copied, and the packed forms of kPieces slices.
inline constexpr uint64_t kSlices = 6;
inline constexpr int kPieces = 4;

// The least limit, if so many bytes are needed beside the slices for the program and whatever does
// not depend on them, and as many tensors are written: their headers, plan and report as JSON.
uint64_t LeastMemoryBytes(uint64_t base_bytes, size_t n_tensors);

// Error, with the flag that would do, if the limit is below the least.
Status CheckMemoryLimit(uint64_t max_memory_bytes, uint64_t least_bytes);

// The largest slice that keeps the limit: large enough to keep every core busy, small enough to
// start early.
uint64_t SliceBytes(uint64_t max_memory_bytes, uint64_t least_bytes);

}  // namespace nibble::repack
