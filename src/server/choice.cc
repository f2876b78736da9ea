#include "server/choice.h"

#include <algorithm>
#include <utility>

namespace nibble::server {

using engine::FinishReason;
using Part = text::AnswerParser::Part;

TokenText TextOf(const text::Tokenizer& tokenizer, text::TokenId id) {
  if (!tokenizer.Contains(id)) return {};
  if (const auto byte = tokenizer.ByteOf(id); byte.has_value()) {
    const std::string bytes(1, static_cast<char>(*byte));
    return {.text = *byte < 0x80 ? bytes : fmt::format("bytes:\\x{:02x}", *byte), .bytes = bytes};
  }
  const std::string text = text::Detokenizer(tokenizer, /*skip_special=*/false).Push(id);
  return {.text = text, .bytes = text};
}

Choice::Choice(const GenerationRequest& request, const text::Tokenizer& tokenizer)
    : request_(request),
      tokenizer_(tokenizer),
      parser_(tokenizer, request.format),
      stops_(request.stop) {}

ChoiceDelta Choice::Take(const engine::Event& event) {
  ChoiceDelta delta;
  if (finished()) return delta;
  ++n_tokens_;
  if (parser_.part() == Part::kThought) ++n_reasoning_tokens_;
  const bool is_stop_token =
      event.finish == FinishReason::kStop &&
      std::ranges::find(request_.engine.stop_ids, event.token_id) != request_.engine.stop_ids.end();
  if (!is_stop_token) {
    if (request_.engine.logprobs && parser_.part() == Part::kContent &&
        !parser_.IsMark(event.token_id)) {
      AddLogprobs(event);
    }
    text::AnswerDelta answer = parser_.Push(event.token_id);
    delta.answer.reasoning = std::move(answer.reasoning);
    delta.answer.calls = std::move(answer.calls);
    AddContent(answer.content, &delta);
  }
  n_calls_ += static_cast<int>(delta.answer.calls.size());
  const bool is_cut = stops_.found() || (request_.single_call && n_calls_ > 0);
  must_cancel_ = is_cut && event.finish == FinishReason::kNone;
  const FinishReason finish = is_cut ? FinishReason::kStop : event.finish;
  if (finish != FinishReason::kNone) Finish(finish, &delta);
  if (!delta.answer.content.empty() || finished()) delta.logprobs = std::exchange(logprobs_, {});
  if (!request_.include_reasoning) delta.answer.reasoning.clear();
  return delta;
}

// Before min_tokens, a stop string is text like any other.
void Choice::AddContent(std::string_view content, ChoiceDelta* delta) {
  if (n_tokens_ > request_.engine.min_tokens) {
    delta->answer.content += stops_.Push(content);
  } else {
    delta->answer.content += content;
  }
}

void Choice::AddLogprobs(const engine::Event& event) {
  TokenLogprobs entry{
      .token = TextOf(tokenizer_, event.token_id), .logprob = event.logprob, .top = {}};
  for (const engine::TokenLogprob& top : event.top) {
    entry.top.emplace_back(TextOf(tokenizer_, top.id), top.logprob);
  }
  logprobs_.push_back(std::move(entry));
}

void Choice::Finish(FinishReason reason, ChoiceDelta* delta) {
  if (!stops_.found() && !must_cancel_) {
    text::AnswerDelta rest = parser_.Finish();
    delta->answer.reasoning += rest.reasoning;
    n_calls_ += static_cast<int>(rest.calls.size());
    std::ranges::move(rest.calls, std::back_inserter(delta->answer.calls));
    AddContent(rest.content, delta);
    delta->answer.content += stops_.Flush();
  }
  // An answer that a constraint leaves without a next token is cut, not whole.
  if (reason == FinishReason::kLength || reason == FinishReason::kDeadEnd) {
    finish_reason_ = stops_.found() ? "stop" : "length";
  } else {
    // For a call that the client named, OpenAI reports stop.
    const bool reports_calls = n_calls_ > 0 && request_.tool_choice != ToolChoice::kNamed;
    finish_reason_ = reports_calls ? "tool_calls" : "stop";
  }
}

}  // namespace nibble::server
