// Generation over token ids: requests in, tokens out, one step at a time for all of them.
//
// A step is schedule, forward, sample: every running sequence that has read its prompt contributes
// its last token; pieces of prompts fill the rest of the step's budget, in order of submission.
// When pages run out, the newest running sequence gives up its own and reads its tokens again
// later. A request's tokens are the same alone, in any company, preempted, and with a prefix from
// the cache. Not thread-safe: one thread submits, steps and cancels. Tested by engine_test.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "base/token_constraint.h"
#include "engine/sampler.h"
#include "model/forward.h"
#include "model/kv_cache.h"
#include "model/weights.h"

namespace nibble::engine {

using RequestId = int64_t;

struct Request {
  std::vector<int32_t> prompt_ids;
  int max_tokens = 0;  // at least 1; fewer come if the context is full before
  int min_tokens = 0;  // no stop id is chosen before this many
  Sampling sampling;
  std::vector<int32_t> stop_ids = {};  // generation ends with one of these
  int n_top_logprobs = 0;              // most likely tokens to report at each step
  bool logprobs = false;  // log-probability of each chosen token, before penalties and biases
  bool prompt_logprobs = false;  // of every prompt token but the first; reads no cached prefix
  std::shared_ptr<TokenConstraint> constraint = nullptr;  // fresh, for this request alone
};

enum class FinishReason {
  kNone,
  kStop,     // a stop id came, or the constraint allows nothing more after a whole answer
  kLength,   // max_tokens, or the context is full
  kDeadEnd,  // the constraint allows no token, and the answer is no whole one
};

// One generated token.
struct Event {
  RequestId request_id = 0;
  int32_t token_id = 0;
  FinishReason finish = FinishReason::kNone;
  double logprob = 0;             // of token_id, if asked for
  std::vector<TokenLogprob> top;  // if asked for
  // With the first token:
  std::vector<double> prompt_logprobs;                // if asked for: of prompt_ids[1], ...
  std::vector<std::vector<TokenLogprob>> prompt_top;  // the same, if n_top_logprobs > 0 too
  int64_t n_cached_tokens = 0;                        // of the prompt, not computed again
};

struct EngineOptions {
  int max_step_tokens = 256;   // in one step, of all sequences: decodes first, then prompts
  int max_sequences = 16;      // running at once; further ones wait
  int64_t context_tokens = 0;  // prompt and answer; 0: the model's limit, never more than that
  // Pages of all sequences and of the prefix cache; 0: no bound. Bounds the context, too.
  int64_t kv_budget_bytes = 0;
  bool prefix_cache = false;  // keep pages of finished sequences for prompts that begin alike
  model::Activations activations = model::Activations::kInt8;
  kernels::KvFormat kv_format = kernels::KvFormat::kBf16;
};

// Pages of one kind. Used: held by running sequences. Cached: held by the prefix cache alone.
struct PageStats {
  int64_t page_bytes = 0;
  int64_t n_used = 0;
  int64_t n_cached = 0;
};

struct Stats {
  int64_t n_running = 0;
  int64_t n_waiting = 0;
  PageStats sliding;
  PageStats full;
  int64_t kv_used_bytes = 0;
  int64_t kv_cached_bytes = 0;
  int64_t kv_budget_bytes = 0;  // 0: no bound
  // Since the engine began:
  int64_t n_preemptions = 0;
  int64_t n_prefix_query_tokens = 0;  // prompt tokens looked up in the prefix cache
  int64_t n_prefix_hit_tokens = 0;    // and found
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
  // Tokens of prompt and answer that a request may have.
  int64_t context_tokens() const { return context_tokens_; }
  Stats stats() const;
  const model::KvCache& kv_cache() const { return kv_cache_; }

 private:
  struct Sequence {
    RequestId id = 0;
    Request request;
    std::vector<int32_t> tokens;  // prompt and generated
    model::KvSequence kv;
    Sampler sampler;
    std::vector<uint64_t> allowed;  // next tokens, where there is a constraint
    Event first;                    // what comes with the first token
    bool is_counted = false;        // in the statistics of the prefix cache

    int64_t n_generated() const {
      return static_cast<int64_t>(tokens.size() - request.prompt_ids.size());
    }
    int64_t n_unread() const { return static_cast<int64_t>(tokens.size()) - kv.n_tokens(); }
    bool decodes() const { return n_unread() == 1 && n_generated() > 0; }
    bool reads_prompt_logprobs() const { return request.prompt_logprobs && n_generated() == 0; }
  };

  // What a running sequence contributes to the step.
  struct Piece {
    RequestId id = 0;
    int64_t n_new_tokens = 0;
    size_t running_idx = 0;
  };

  void Schedule();
  bool MakeRoom(size_t i, int64_t n_new_tokens);
  void PreemptLast();
  void ReadPrompt(size_t i, int64_t& budget);
  bool Admit();
  void FillStep();
  void ReadPromptLogprobs(Sequence& sequence, std::span<const float> logits, int n_logits) const;
  Event Sample(Sequence& sequence, std::span<const float> logits);
  bool FillAllowed(Sequence& sequence) const;

  const model::Weights& weights_;
  EngineOptions options_;
  int64_t context_tokens_ = 0;
  bool is_short_of_memory_ = false;  // that, and not the model, bounds the context
  model::KvCache kv_cache_;
  model::Forward forward_;
  RequestId next_id_ = 1;
  std::deque<Sequence> waiting_;
  std::vector<Sequence> running_;  // in order of submission, all of them before those that wait
  std::vector<Piece> scheduled_;   // in this step
  std::vector<model::StepSequence> step_;
  int64_t n_preemptions_ = 0;
  int64_t n_prefix_query_tokens_ = 0;
  int64_t n_prefix_hit_tokens_ = 0;
};

}  // namespace nibble::engine
