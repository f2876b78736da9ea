// Generation over token ids: requests in, tokens out, one step at a time for all of them.
//
// A step is schedule, forward, sample: every running sequence that has read its prompt contributes
// its last token; prompts are read in pieces within a budget. A request's tokens are the same alone
// and in any company. Not thread-safe: one thread submits, steps and cancels. Tested by
// engine_test.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/sampler.h"
#include "model/forward.h"
#include "model/kv_cache.h"
#include "model/weights.h"

namespace nibble::engine {

using RequestId = int64_t;

struct Request {
  std::vector<int32_t> prompt_ids;
  int max_tokens = 0;  // at least 1; fewer come if the context is full before
  Sampling sampling;
  std::vector<int32_t> stop_ids;  // generation ends with one of these
  int n_top_logprobs = 0;         // most likely tokens to report at each step
  bool prompt_logprobs = false;   // log-probability of every prompt token but the first
};

enum class FinishReason { kNone, kStop, kLength };

// One generated token.
struct Event {
  RequestId request_id = 0;
  int32_t token_id = 0;
  FinishReason finish = FinishReason::kNone;
  std::vector<TokenLogprob> top;        // if asked for
  std::vector<double> prompt_logprobs;  // if asked for, with the first token: of prompt_ids[1], ...
};

struct EngineOptions {
  int prefill_chunk_tokens = 256;  // prompt tokens in a step, of all sequences together
  int max_sequences = 16;          // running at once; further ones wait
  model::Activations activations = model::Activations::kInt8;
  kernels::KvFormat kv_format = kernels::KvFormat::kBf16;
};

class Engine {
 public:
  // All must outlive the engine.
  Engine(const model::Weights& weights, const kernels::KernelTable& kernels, ThreadPool& pool,
         const EngineOptions& options);

  // Errors: an empty prompt, an id without embedding, a prompt that leaves no room in the context.
  Result<RequestId> Submit(Request request);
  // Ends a request, whether it waits or runs; its pages are free at once. Unknown ids are ignored.
  void Cancel(RequestId id);
  // Runs one step; returns the tokens that it gave, in order of submission. Nothing to do: empty.
  std::vector<Event> Step();

  bool idle() const { return waiting_.empty() && running_.empty(); }
  const model::KvCache& kv_cache() const { return kv_cache_; }

 private:
  struct Sequence {
    RequestId id = 0;
    Request request;
    std::vector<int32_t> tokens;  // prompt and generated
    model::KvSequence kv;
    std::vector<double> prompt_logprobs;

    int64_t n_generated() const {
      return static_cast<int64_t>(tokens.size() - request.prompt_ids.size());
    }
  };

  void Schedule();
  void ReadPromptLogprobs(Sequence& sequence, std::span<const float> logits, int n_logits) const;
  Event Sample(Sequence& sequence, std::span<const float> logits) const;

  const model::Weights& weights_;
  EngineOptions options_;
  model::KvCache kv_cache_;
  model::Forward forward_;
  RequestId next_id_ = 1;
  std::deque<Sequence> waiting_;
  std::vector<Sequence> running_;          // in order of submission
  std::vector<size_t> scheduled_;          // of running_, in this step
  std::vector<model::StepSequence> step_;  // what they contribute
};

}  // namespace nibble::engine
