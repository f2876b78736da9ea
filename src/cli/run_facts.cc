#include "cli/run_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/peak_memory.h"
#include "cli/units.h"

namespace nibble::cli {

Json RunFacts::ToJson(const repack::Options& options) const {
  return {{"seconds", seconds},
          {"threads", options.n_threads},
          {"peak_memory_bytes", PeakResidentBytes()},
          {"max_memory_bytes", options.max_memory_bytes}};
}

void RunFacts::Print(const repack::Options& options) const {
  const double rate = static_cast<double>(source_bytes) / std::max(seconds, 1e-3);
  fmt::print(stderr, "{:.1f} s, {}/s of the source, peak memory {} of at most {}\n", seconds,
             FormatBytes(static_cast<uint64_t>(rate)), FormatBytes(PeakResidentBytes()),
             FormatBytes(options.max_memory_bytes));
}

}  // namespace nibble::cli
