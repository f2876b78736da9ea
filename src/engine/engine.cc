#include "engine/engine.h"

#include <algorithm>
#include <utility>

namespace nibble::engine {

Engine::Engine(const model::Weights& weights, const kernels::KernelTable& kernels, ThreadPool& pool,
               const EngineOptions& options)
    : weights_(weights),
      options_(options),
      kv_cache_(weights.config, {.format = options.kv_format,
                                 .budget_bytes = options.kv_budget_bytes,
                                 .prefix_cache = options.prefix_cache}),
      forward_(weights, kv_cache_,
               {.kernels = kernels, .pool = pool, .activations = options.activations}) {
  context_tokens_ = weights.config.max_position_embeddings;
  if (options.context_tokens > 0) {
    context_tokens_ = std::min(context_tokens_, options.context_tokens);
  }
  if (options.kv_budget_bytes == 0) return;
  // The most tokens that one sequence can keep alone.
  int64_t too_many = context_tokens_ + 1;
  int64_t fitting = 0;
  while (too_many - fitting > 1) {
    const int64_t n = fitting + (too_many - fitting) / 2;
    (kv_cache_.pool().Bytes(kv_cache_.PagesOf(n, options.max_step_tokens)) <=
             options.kv_budget_bytes
         ? fitting
         : too_many) = n;
  }
  is_short_of_memory_ = fitting < context_tokens_;
  context_tokens_ = fitting;
}

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
    return Fail("prompt of {} tokens: the context holds {}{}, and one must be generated",
                prompt.size(), context_tokens_,
                is_short_of_memory_ ? " in the memory given to keys and values" : "");
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

// Sequences that decode come first, so that reading prompts never stops them; prompts get the rest
// of the budget, at least one token, so that decoding never stops them either.
void Engine::Schedule() {
  scheduled_.clear();
  int64_t budget = options_.max_step_tokens;
  const int64_t n_preemptions = n_preemptions_;
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i].decodes() || !MakeRoom(i, 1)) continue;
    scheduled_.push_back({.id = running_[i].id, .n_new_tokens = 1});
    --budget;
  }
  budget = std::max<int64_t>(budget, 1);
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i].decodes()) ReadPrompt(i, budget);
  }
  if (n_preemptions == n_preemptions_) {
    while (budget > 0 && Admit()) ReadPrompt(running_.size() - 1, budget);
  }
  FillStep();
}

// Pages for the next tokens of running_[i], if need be from sequences that came later, the last
// one first. false: there are none even so, and it has given up its own.
bool Engine::MakeRoom(size_t i, int64_t n_new_tokens) {
  while (!running_[i].kv.Reserve(n_new_tokens)) {
    const bool is_last = i + 1 == running_.size();
    PreemptLast();
    if (is_last) return false;
  }
  return true;
}

void Engine::PreemptLast() {
  Sequence& last = running_.back();
  last.kv.Clear();
  last.first.prompt_logprobs.clear();
  last.first.prompt_top.clear();
  std::erase_if(scheduled_, [&](const Piece& piece) { return piece.id == last.id; });
  waiting_.push_front(std::move(last));
  running_.pop_back();
  ++n_preemptions_;
}

void Engine::ReadPrompt(size_t i, int64_t& budget) {
  const int64_t n_new = std::min(running_[i].n_unread(), budget);
  if (n_new == 0 || !MakeRoom(i, n_new)) return;
  budget -= n_new;
  scheduled_.push_back({.id = running_[i].id, .n_new_tokens = n_new});
}

// Lets the first one that waits run, if all its tokens so far find room beside the others.
bool Engine::Admit() {
  if (waiting_.empty() || running_.size() >= static_cast<size_t>(options_.max_sequences)) {
    return false;
  }
  Sequence& sequence = waiting_.front();
  const auto n_tokens = static_cast<int64_t>(sequence.tokens.size());
  const bool reads_prefix = !(sequence.request.prompt_logprobs && sequence.n_generated() == 0);
  const int64_t n_cached = reads_prefix ? sequence.kv.TakePrefix(sequence.tokens) : 0;
  model::ByKind n_pages = kv_cache_.PagesOf(n_tokens, options_.max_step_tokens);
  for (size_t k = 0; k < n_pages.size(); ++k) {
    n_pages[k] = std::max<int64_t>(0, n_pages[k] - sequence.kv.n_pages()[k]);
  }
  if (!kv_cache_.pool().CanTake(n_pages)) {
    sequence.kv.Clear();
    return false;
  }
  if (!sequence.is_counted && kv_cache_.has_prefix_cache()) {
    sequence.is_counted = true;
    sequence.first.n_cached_tokens = n_cached;
    n_prefix_query_tokens_ += reads_prefix ? n_tokens : 0;
    n_prefix_hit_tokens_ += n_cached;
  }
  running_.push_back(std::move(sequence));
  waiting_.pop_front();
  return true;
}

void Engine::FillStep() {
  step_.clear();
  std::ranges::sort(scheduled_, {}, &Piece::id);
  for (Piece& piece : scheduled_) {
    const auto own = std::ranges::lower_bound(running_, piece.id, {}, &Sequence::id);
    piece.running_idx = static_cast<size_t>(own - running_.begin());
    int64_t n_logits = piece.n_new_tokens == own->n_unread() ? 1 : 0;
    if (own->reads_prompt_logprobs()) n_logits = piece.n_new_tokens;
    step_.push_back(
        {.tokens = std::span(own->tokens).subspan(own->kv.n_tokens(), piece.n_new_tokens),
         .kv = &own->kv,
         .n_logits = static_cast<int>(n_logits)});
  }
}

Stats Engine::stats() const {
  const model::PagePool& pool = kv_cache_.pool();
  const auto stats_of = [&](model::PageKind kind) {
    return PageStats{.page_bytes = pool.page_bytes(kind),
                     .n_used = pool.n_used(kind),
                     .n_cached = pool.n_cached(kind)};
  };
  return {.n_running = static_cast<int64_t>(running_.size()),
          .n_waiting = static_cast<int64_t>(waiting_.size()),
          .sliding = stats_of(model::PageKind::kSliding),
          .full = stats_of(model::PageKind::kFull),
          .kv_used_bytes = pool.used_bytes(),
          .kv_cached_bytes = pool.cached_bytes(),
          .kv_budget_bytes = pool.budget_bytes(),
          .n_preemptions = n_preemptions_,
          .n_prefix_query_tokens = n_prefix_query_tokens_,
          .n_prefix_hit_tokens = n_prefix_hit_tokens_};
}

std::vector<Event> Engine::Step() {
  Schedule();
  if (step_.empty()) return {};
  std::span<const float> logits = forward_.Step(step_);
  const auto vocab_size = static_cast<size_t>(weights_.config.vocab_size);
  std::vector<Event> events;
  for (size_t i = 0; i < step_.size(); ++i) {
    Sequence& sequence = running_[scheduled_[i].running_idx];
    const int n_logits = step_[i].n_logits;
    const std::span<const float> own = logits.first(n_logits * vocab_size);
    logits = logits.subspan(own.size());
    if (sequence.reads_prompt_logprobs()) {
      ReadPromptLogprobs(sequence, own, n_logits);
    }
    if (sequence.n_unread() == 0) {
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
