#include "engine/engine.h"

#include <algorithm>
#include <utility>

namespace nibble::engine {

Engine::Engine(const model::Weights& weights, const kernels::KernelTable& kernels, ThreadPool& pool,
               const EngineOptions& options)
    : weights_(weights),
      options_(options),
      kv_cache_(weights.config, options.kv_format),
      forward_(weights, kv_cache_,
               {.kernels = kernels, .pool = pool, .activations = options.activations}) {}

Result<RequestId> Engine::Submit(Request request) {
  const std::vector<int32_t>& prompt = request.prompt_ids;
  if (prompt.empty()) return Fail("prompt: expected at least one token, found none");
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] < 0 || prompt[i] >= weights_.n_token_ids()) {
      return Fail("prompt token {}: id {}: expected 0 to {}", i, prompt[i],
                  weights_.n_token_ids() - 1);
    }
  }
  const int64_t room =
      weights_.config.max_position_embeddings - static_cast<int64_t>(prompt.size());
  if (room < 1) {
    return Fail("prompt of {} tokens: the context holds {}, and one must be generated",
                prompt.size(), weights_.config.max_position_embeddings);
  }
  if (request.max_tokens < 1) {
    return Fail("max_tokens {}: expected at least 1", request.max_tokens);
  }
  request.max_tokens = static_cast<int>(std::min<int64_t>(request.max_tokens, room));
  const RequestId id = next_id_++;
  std::vector<int32_t> tokens = prompt;
  waiting_.push_back({.id = id,
                      .request = std::move(request),
                      .tokens = std::move(tokens),
                      .kv = model::KvSequence(kv_cache_),
                      .prompt_logprobs = {}});
  return id;
}

void Engine::Cancel(RequestId id) {
  const auto is_it = [id](const Sequence& sequence) { return sequence.id == id; };
  std::erase_if(waiting_, is_it);
  std::erase_if(running_, is_it);
}

// Sequences that decode come first, so that reading long prompts never stops them.
void Engine::Schedule() {
  while (!waiting_.empty() && running_.size() < static_cast<size_t>(options_.max_sequences)) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  scheduled_.clear();
  step_.clear();
  int64_t budget = options_.prefill_chunk_tokens;
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = running_[i];
    const int64_t n_read = sequence.kv.n_tokens();
    int64_t n_new = static_cast<int64_t>(sequence.tokens.size()) - n_read;
    int n_logits = 1;
    if (sequence.n_generated() == 0) {
      const bool ends_prompt = n_new <= budget;
      n_new = std::min(n_new, budget);
      budget -= n_new;
      n_logits = ends_prompt ? 1 : 0;
      if (sequence.request.prompt_logprobs) n_logits = static_cast<int>(n_new);
    }
    if (n_new == 0) continue;
    scheduled_.push_back(i);
    step_.push_back({.tokens = std::span(sequence.tokens).subspan(n_read, n_new),
                     .kv = &sequence.kv,
                     .n_logits = n_logits});
  }
}

std::vector<Event> Engine::Step() {
  Schedule();
  if (step_.empty()) return {};
  std::span<const float> logits = forward_.Step(step_);
  const auto vocab_size = static_cast<size_t>(weights_.config.vocab_size);
  std::vector<Event> events;
  for (size_t i = 0; i < step_.size(); ++i) {
    Sequence& sequence = running_[scheduled_[i]];
    const int n_logits = step_[i].n_logits;
    const std::span<const float> own = logits.first(n_logits * vocab_size);
    logits = logits.subspan(own.size());
    if (sequence.n_generated() == 0 && sequence.request.prompt_logprobs) {
      ReadPromptLogprobs(sequence, own, n_logits);
    }
    if (sequence.kv.n_tokens() == static_cast<int64_t>(sequence.tokens.size())) {
      events.push_back(Sample(sequence, own.last(vocab_size)));
    }
  }
  for (const Event& event : events) {
    if (event.finish != FinishReason::kNone) Cancel(event.request_id);
  }
  return events;
}

void Engine::ReadPromptLogprobs(Sequence& sequence, std::span<const float> logits,
                                int n_logits) const {
  const auto vocab_size = static_cast<size_t>(weights_.config.vocab_size);
  for (int row = 0; row < n_logits; ++row) {
    const auto next = static_cast<size_t>(sequence.kv.n_tokens() - n_logits + row + 1);
    if (next == sequence.tokens.size()) break;  // its successor is about to be sampled
    const std::span<const float> own = logits.subspan(row * vocab_size, vocab_size);
    sequence.prompt_logprobs.push_back(static_cast<double>(own[sequence.tokens[next]]) -
                                       LogSumExp(own));
  }
}

Event Engine::Sample(Sequence& sequence, std::span<const float> logits) const {
  const Request& request = sequence.request;
  Event event{.request_id = sequence.id,
              .token_id = engine::Sample(logits, request.sampling, sequence.n_generated()),
              .top = {},
              .prompt_logprobs = std::exchange(sequence.prompt_logprobs, {})};
  if (request.n_top_logprobs > 0) event.top = TopLogprobs(logits, request.n_top_logprobs);
  sequence.tokens.push_back(event.token_id);
  if (std::ranges::find(request.stop_ids, event.token_id) != request.stop_ids.end()) {
    event.finish = FinishReason::kStop;
  } else if (sequence.n_generated() >= request.max_tokens) {
    event.finish = FinishReason::kLength;
  }
  return event;
}

}  // namespace nibble::engine
