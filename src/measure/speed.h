// How fast a model runs in this process: reading prompts, and decoding at a length of context and a
// number of sequences; beside the rate at which this machine reads memory, which bounds decoding.
// Prompts are random token ids, never the same twice. Tested by
// tests/interop/test_bench.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/engine.h"

namespace nibble::measure {

struct SpeedOptions {
  std::vector<int> prompts = {512};   // tokens, read alone
  std::vector<int> contexts = {128};  // tokens before those that are decoded
  std::vector<int> batches = {1};     // sequences that decode together
  int n_tokens = 32;                  // decoded by each of them, after one to warm up
  int n_runs = 3;
};

struct SpeedRow {
  std::string_view work;     // "prefill" or "decode"
  int n_context_tokens = 0;  // the prompt, or what stands before the decoded tokens
  int n_sequences = 1;
  std::vector<double> tokens_per_s;  // of all sequences together, one a run

  double median() const;
};

// Errors: those of Engine::Submit; the engine runs fewer sequences at once than a row has.
Result<std::vector<SpeedRow>> MeasureSpeed(engine::Engine& engine, int64_t n_token_ids,
                                           const SpeedOptions& options);

// 1 GiB that is in no cache, to be read by all threads of a pool.
class MemoryProbe {
 public:
  explicit MemoryProbe(ThreadPool& pool);
  // Bytes per second of one pass over it.
  double Read();

 private:
  ThreadPool& pool_;
  std::shared_ptr<std::byte[]> memory_;
};

struct MemoryShare {
  double bytes_per_s = 0;  // at which memory is read
  double of_decode = 0;    // weights that decoding reads a second, over that
};

// How near the decoding of one sequence comes to what the memory allows: a pass of the probe and a
// few tokens in turn, as what a shared machine gives moves from second to second; medians. Errors:
// those of Engine::Submit.
Result<MemoryShare> MeasureMemoryShare(engine::Engine& engine, int64_t n_token_ids,
                                       double weight_bytes_per_token, MemoryProbe& probe);

}  // namespace nibble::measure
