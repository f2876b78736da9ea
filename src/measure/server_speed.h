// How fast a server answers, by its own count of tokens: decode speed from two lengths, throughput
// of many requests at once, long prompts. Every request's prompt is new from its first word on, so
// that no cache helps, and what a cache gave all the same is reported. Tested by
// tests/interop/test_bench_server.py.
#pragma once

#include <functional>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "measure/target.h"

namespace nibble::measure {

struct ServerSpeedOptions {
  int n_short_tokens = 16;  // decode speed is (long - short) tokens over the difference in time
  int n_long_tokens = 512;
  int n_runs = 5;                                // of each length, alternating
  std::vector<int> contexts = {256};             // tokens before those that are decoded
  std::vector<int> batches = {1, 4, 16};         // requests at once
  int n_tokens = 256;                            // that each of them gets
  int n_batches = 2;                             // after one to warm up
  std::vector<int> long_prompts = {1024, 3584};  // tokens
};

// {"rows": [{"work", "context_tokens", "sequences", "tokens_per_s": median, "runs_tokens_per_s",
// ...}], "requests", "failed", "first_fault", "stopped_early", "cached_share", "flags"}.
// on_request: after each one, with the number done and that of all.
Result<Json> MeasureServer(Target& target, const ServerSpeedOptions& options,
                           const std::function<void(size_t n_done, size_t n)>& on_request);

}  // namespace nibble::measure
