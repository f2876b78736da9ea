#include "engine/engine.h"

#include <algorithm>
#include <utility>

namespace nibble::engine {

Engine::Engine(const model::Weights& weights, const kernels::KernelTable& kernels, ThreadPool& pool,
               const EngineOptions& options)
    : weights_(weights),
      options_(options),
      context_tokens_(weights.config.max_position_embeddings),
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
  const int64_t room = context_tokens_ - static_cast<int64_t>(prompt.size());
  if (room < 1) {
    return Fail("prompt of {} tokens: the context holds {}, and one must be generated",
                prompt.size(), context_tokens_);
  }
  if (request.max_tokens < 1) {
    return Fail("max_tokens {}: expected at least 1", request.max_tokens);
  }
  request.max_tokens = static_cast<int>(std::min<int64_t>(request.max_tokens, room));
  const RequestId id = next_id_++;
  std::vector<int32_t> tokens = prompt;
  Sampler sampler(request.sampling, prompt);
  waiting_.push_back({.id = id,
                      .request = std::move(request),
                      .tokens = std::move(tokens),
                      .kv = model::KvSequence(kv_cache_),
                      .sampler = std::move(sampler),
                      .allowed = {},
                      .first = {}});
  FillAllowed(waiting_.back());
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
  int64_t budget = options_.max_step_tokens;
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

Stats Engine::stats() const {
  return {.n_running = static_cast<int64_t>(running_.size()),
          .n_waiting = static_cast<int64_t>(waiting_.size()),
          .sliding = {},
          .full = {},
          .kv_used_bytes = kv_cache_.bytes_in_use()};
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
  const int n_top = sequence.request.n_top_logprobs;
  for (int row = 0; row < n_logits; ++row) {
    const auto next = static_cast<size_t>(sequence.kv.n_tokens() - n_logits + row + 1);
    if (next == sequence.tokens.size()) break;  // its successor is about to be sampled
    const std::span<const float> own = logits.subspan(row * vocab_size, vocab_size);
    const double log_sum = LogSumExp(own);
    Event& first = sequence.first;
    first.prompt_logprobs.push_back(static_cast<double>(own[sequence.tokens[next]]) - log_sum);
    if (n_top > 0) first.prompt_top.push_back(TopLogprobs(own, n_top, log_sum));
  }
}

Event Engine::Sample(Sequence& sequence, std::span<const float> logits) {
  const Request& request = sequence.request;
  Event event = std::exchange(sequence.first, {});
  event.request_id = sequence.id;
  event.token_id = sequence.sampler.Sample(logits, sequence.n_generated(), sequence.allowed);
  if (request.logprobs || request.n_top_logprobs > 0) {
    const double log_sum = LogSumExp(logits);
    event.logprob = static_cast<double>(logits[event.token_id]) - log_sum;
    if (request.n_top_logprobs > 0) {
      event.top = TopLogprobs(logits, request.n_top_logprobs, log_sum);
    }
  }
  sequence.tokens.push_back(event.token_id);
  sequence.sampler.Accept(event.token_id);
  if (std::ranges::find(request.stop_ids, event.token_id) != request.stop_ids.end()) {
    event.finish = FinishReason::kStop;
    return event;
  }
  if (request.constraint != nullptr) request.constraint->Accept(event.token_id);
  if (!FillAllowed(sequence)) {
    const bool is_whole = request.constraint->is_complete();
    event.finish = is_whole ? FinishReason::kStop : FinishReason::kDeadEnd;
  } else if (sequence.n_generated() >= request.max_tokens) {
    event.finish = FinishReason::kLength;
  }
  return event;
}

// What may come next; false: nothing but a stop id, or nothing at all.
bool Engine::FillAllowed(Sequence& sequence) const {
  const Request& request = sequence.request;
  const bool may_stop = sequence.n_generated() >= request.min_tokens;
  sequence.allowed.clear();
  if (request.constraint == nullptr && (may_stop || request.stop_ids.empty())) return true;
  sequence.allowed.assign((static_cast<size_t>(weights_.config.vocab_size) + 63) / 64,
                          ~uint64_t{0});
  if (request.constraint != nullptr) {
    request.constraint->FillMask(sequence.allowed);
    if (std::ranges::all_of(sequence.allowed, [](uint64_t word) { return word == 0; }))
      return false;
  }
  const bool may_end =
      may_stop && (request.constraint == nullptr || request.constraint->is_complete());
  for (const int32_t id : request.stop_ids) {
    if (id < 0 || id >= weights_.config.vocab_size) continue;
    uint64_t& word = sequence.allowed[static_cast<size_t>(id) / 64];
    const uint64_t bit = uint64_t{1} << (id % 64);
    word = may_end ? word | bit : word & ~bit;
  }
  return true;
}

}  // namespace nibble::engine
