// Streams the plan's tensors into shards: the source is read ahead, packed on all threads, written
// and hashed behind (shard_writer.h), and its pages are let go of. Tested by repack_test.cc and
// tests/interop/test_scale.py.
#pragma once

#include <cstdint>

#include "base/progress.h"
#include "base/result.h"
#include "repack/output_directory.h"
#include "repack/plan.h"
#include "repack/repack.h"

namespace nibble::repack {

// The least that options.max_memory_bytes may be for this plan.
uint64_t LeastMemoryBytes(const Plan& plan);

// Writes all shards that the directory has not from an interrupted run, and the index if there are
// several; fills counts, totals and shards of the report. The bytes depend neither on threads nor
// on memory. An error of the input (off the grid, not finite) discards the directory; any other
// leaves what a later run can go on with.
Status WriteShards(const Plan& plan, const Options& options, const ProgressFn& progress,
                   OutputDirectory* directory, RepackReport* report);

}  // namespace nibble::repack
