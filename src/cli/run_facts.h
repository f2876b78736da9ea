// What differs from run to run of a repack and is therefore in no file that the run wrote: seconds,
// threads, memory.
#pragma once

#include "base/json.h"
#include "repack/plan.h"

namespace nibble::cli {

struct RunFacts {
  double seconds = 0;
  uint64_t source_bytes = 0;

  Json ToJson(const repack::Options& options) const;
  void Print(const repack::Options& options) const;  // on stderr
};

}  // namespace nibble::cli
