#include "server/generation.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "text/utf8.h"

namespace nibble::server {
namespace {

int64_t CountCharacters(std::string_view text) {
  int64_t n = 0;
  for (size_t i = 0; i < text.size(); ++n) i += text::CharacterAt(text, i).n_bytes;
  return n;
}

ApiError TooManyRequests(int max_requests) {
  return {.status = 429,
          .message = fmt::format(
              "The server has {} requests in hand, as many as it takes. Please try again later.",
              max_requests),
          .code = "queue_full",
          .retry_after_s = 1};
}

}  // namespace

Generation::Generation(GenerationRequest request, const Context& context, LogEntry log_entry)
    : request_(std::move(request)),
      context_(context),
      log_entry_(std::move(log_entry)),
      head_{.id = RandomId(request_.is_chat ? "chatcmpl-" : "cmpl-"),
            .created_s = std::chrono::duration_cast<std::chrono::seconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count(),
            .model = request_.model,
            .is_chat = request_.is_chat,
            .shows_logprobs = request_.engine.logprobs},
      queue_(std::make_shared<TokenQueue>(context.max_buffered_tokens)) {
  const size_t n_choices = request_.n_choices();
  for (size_t i = 0; i < n_choices; ++i) {
    choices_.emplace_back(request_, context_.model.tokenizer);
    answers_.push_back({.choice_idx = static_cast<int>(i)});
  }
  n_chars_.resize(n_choices);
  last_token_.resize(n_choices);
  n_cached_tokens_.resize(n_choices);
  log_entry_.id = head_.id;
  for (const Prompt& prompt : request_.prompts) log_entry_.prompt += prompt.text;
}

ApiResult<std::unique_ptr<Generation>> Generation::Start(GenerationRequest request,
                                                         const Context& context,
                                                         LogEntry log_entry) {
  EngineThread& engine = *context.model.engine;
  if (request.n_choices() > engine.max_requests()) {
    return std::unexpected(BadField("n", "n: {} answers at once: this server takes at most {}",
                                    request.n_choices(), engine.max_requests()));
  }
  std::unique_ptr<Generation> generation(
      new Generation(std::move(request), context, std::move(log_entry)));
  auto tickets = engine.Submit(generation->EngineRequests(), generation->queue_);
  if (!tickets.has_value()) {
    generation->ended_ = true;
    return std::unexpected(TooManyRequests(engine.max_requests()));
  }
  generation->tickets_ = *std::move(tickets);
  return generation;
}

Generation::~Generation() {  // NOLINT(bugprone-exception-escape): without memory nothing goes on
  queue_->SetWake(nullptr);  // the engine may hold the queue for a step longer
  if (ended_) return;
  for (const Choice& choice : choices_) {
    if (!choice.finished()) log_entry_.record.finish_reasons.emplace_back("abort");
  }
  log_entry_.error = "the client has gone";
  log_entry_.status = 499;  // as nginx has it
  std::string unread;
  End(&unread);
}

// The choices of a prompt differ by their seeds alone, each with a constraint of its own.
std::vector<engine::Request> Generation::EngineRequests() const {
  std::vector<engine::Request> requests;
  for (const Prompt& prompt : request_.prompts) {
    const int64_t room = context_.model.context_tokens - static_cast<int64_t>(prompt.ids.size());
    for (int i = 0; i < request_.n; ++i) {
      engine::Request request = request_.engine;
      request.prompt_ids = prompt.ids;
      if (request.max_tokens == 0 || request.max_tokens > room) {
        request.max_tokens = static_cast<int>(room);
      }
      request.min_tokens = std::min(request.min_tokens, request.max_tokens);
      request.sampling.seed += static_cast<uint64_t>(i);
      if (request_.new_constraint != nullptr) request.constraint = request_.new_constraint();
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

void Generation::SetWake(std::function<void()> wake) { queue_->SetWake(std::move(wake)); }

bool Generation::Advance(std::string* body) {
  if (ended_) return true;
  if (request_.stream && request_.is_chat && log_entry_.status == 0) {
    for (const AnswerPiece& answer : answers_) {
      *body += SseEvent(RoleChunk(head_, answer.choice_idx));
    }
  }
  log_entry_.status = 200;
  std::string failure = queue_->failure();  // before the tokens, which then are all that came
  for (const Delivery& delivery : queue_->Take()) Take(delivery, body);
  if (n_finished_ < choices_.size() && failure.empty()) return false;
  if (n_finished_ < choices_.size()) failure_ = std::move(failure);
  End(body);
  return true;
}

void Generation::Take(const Delivery& delivery, std::string* body) {
  const int idx = delivery.choice_idx;
  Choice& choice = choices_[idx];
  if (choice.finished()) return;
  const Clock::time_point now = Clock::now();
  const bool is_first = choice.n_tokens() == 0;
  const bool has_prompt = is_first && idx % request_.n == 0;
  context_.metrics.CountTokens(
      has_prompt ? static_cast<int64_t>(request_.prompts[idx / request_.n].ids.size()) : 0, 1);
  if (is_first) {
    n_cached_tokens_[idx] = delivery.event.n_cached_tokens;
    if (first_token_s_ < 0) first_token_s_ = SecondsSinceStart();
    if (request_.echo) Emit(EchoPiece(idx, delivery.event), body);
  } else {
    context_.metrics.CountTokenGap(std::chrono::duration<double>(now - last_token_[idx]).count());
  }
  last_token_[idx] = now;
  ChoiceDelta delta = choice.Take(delivery.event);
  if (choice.must_cancel()) context_.model.engine->Cancel(std::span(&tickets_[idx], 1));
  if (choice.finished()) {
    ++n_finished_;
    log_entry_.record.finish_reasons.push_back(choice.finish_reason());
  }
  if (!delta.empty() || choice.finished()) {
    Emit({.choice_idx = idx,
          .content = std::move(delta.answer.content),
          .reasoning = std::move(delta.answer.reasoning),
          .calls = std::move(delta.answer.calls),
          .logprobs = std::move(delta.logprobs),
          .finish_reason = choice.finish_reason()},
         body);
  }
}

// The prompt as the beginning of the answer, which is how log-probabilities of given text are had.
AnswerPiece Generation::EchoPiece(int choice_idx, const engine::Event& event) const {
  const Prompt& prompt = request_.prompts[choice_idx / request_.n];
  AnswerPiece piece{.choice_idx = choice_idx, .content = prompt.text};
  if (!request_.engine.logprobs) return piece;
  piece.has_first_token = true;
  for (size_t i = 0; i < prompt.ids.size(); ++i) {
    TokenLogprobs entry{.token = TextOf(context_.model.tokenizer, prompt.ids[i])};
    if (i > 0 && i <= event.prompt_logprobs.size()) entry.logprob = event.prompt_logprobs[i - 1];
    if (i > 0 && i <= event.prompt_top.size()) {
      for (const engine::TokenLogprob& top : event.prompt_top[i - 1]) {
        entry.top.emplace_back(TextOf(context_.model.tokenizer, top.id), top.logprob);
      }
    }
    piece.logprobs.push_back(std::move(entry));
  }
  return piece;
}

void Generation::SetOffsets(AnswerPiece* piece) {
  int64_t& n_chars = n_chars_[piece->choice_idx];
  for (const TokenLogprobs& entry : piece->logprobs) {
    piece->text_offsets.push_back(n_chars);
    n_chars += CountCharacters(entry.token.text);
  }
}

void Generation::Emit(AnswerPiece piece, std::string* body) {
  SetOffsets(&piece);
  AnswerPiece& whole = answers_[piece.choice_idx];
  if (request_.stream) {
    piece.first_call_idx = whole.first_call_idx;
    whole.first_call_idx += static_cast<int>(piece.calls.size());
    // What ends a choice has a chunk of its own, as clients expect it.
    std::string finish_reason = std::exchange(piece.finish_reason, std::string());
    const bool says_something = !piece.content.empty() || !piece.reasoning.empty() ||
                                !piece.calls.empty() || !piece.logprobs.empty();
    if (says_something) *body += SseEvent(Chunk(head_, piece));
    if (!finish_reason.empty()) {
      *body += SseEvent(Chunk(
          head_, {.choice_idx = piece.choice_idx, .finish_reason = std::move(finish_reason)}));
    }
    return;
  }
  whole.content += piece.content;
  whole.reasoning += piece.reasoning;
  whole.has_first_token |= piece.has_first_token;
  std::ranges::move(piece.calls, std::back_inserter(whole.calls));
  std::ranges::move(piece.logprobs, std::back_inserter(whole.logprobs));
  std::ranges::move(piece.text_offsets, std::back_inserter(whole.text_offsets));
  whole.finish_reason = piece.finish_reason;
}

// Counts and logs the request. After a failure a stream ends without [DONE].
void Generation::End(std::string* body) {
  ended_ = true;
  Cancel();
  const Usage usage = TotalUsage();
  RequestRecord& record = log_entry_.record;
  record.n_prompt_tokens = usage.n_prompt_tokens;
  record.n_cached_tokens = usage.n_cached_tokens;
  record.n_completion_tokens = usage.n_completion_tokens;
  record.first_token_s = first_token_s_;
  record.total_s = SecondsSinceStart();
  if (!failure_.empty()) {
    record.finish_reasons.emplace_back("abort");
    log_entry_.error = failure_;
    if (!request_.stream) log_entry_.status = 500;
  }
  context_.metrics.CountRequest(record);
  context_.metrics.CountResponse(log_entry_.status);
  context_.log.Write(log_entry_);
  if (!request_.stream) return;
  if (!failure_.empty()) {
    *body += SseEvent(ErrorBody({.status = 500, .message = failure_, .code = "engine_error"}));
    return;
  }
  if (request_.include_usage) *body += SseEvent(UsageChunk(head_, usage));
  *body += SseEvent("[DONE]");
}

void Generation::Cancel() {
  if (n_finished_ < choices_.size()) context_.model.engine->Cancel(tickets_);
}

HttpResponse Generation::TakeResponse() {
  if (!failure_.empty()) {
    return ErrorResponse({.status = 500, .message = failure_, .code = "engine_error"});
  }
  return {.body = WholeAnswer(head_, answers_, TotalUsage())};
}

Usage Generation::TotalUsage() const {
  Usage usage;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i % static_cast<size_t>(request_.n) == 0) {
      usage.n_prompt_tokens +=
          static_cast<int64_t>(request_.prompts[i / static_cast<size_t>(request_.n)].ids.size());
      usage.n_cached_tokens += n_cached_tokens_[i];
    }
    usage.n_completion_tokens += choices_[i].n_tokens();
    usage.n_reasoning_tokens += choices_[i].n_reasoning_tokens();
  }
  return usage;
}

double Generation::SecondsSinceStart() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

}  // namespace nibble::server
