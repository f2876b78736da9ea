#include "measure/engine_target.h"

#include <algorithm>
#include <list>
#include <span>
#include <utility>

#include "base/json.h"
#include "base/stopwatch.h"
#include "text/answer_parser.h"

namespace nibble::measure {
// A query whose request is with the engine.
struct EngineTarget::Pending {
  const Query* query = nullptr;
  size_t index = 0;  // of the query
  engine::RequestId request_id = 0;
  Stopwatch stopwatch = {};
  Reply reply = {};
};

Result<std::vector<int32_t>> EngineTarget::PromptIds(const Query& query) const {
  if (query.messages.empty()) return tokenizer_.Encode(query.text, /*add_bos=*/true);
  Json messages = Json::array();
  for (const Message& message : query.messages) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  Json tools;
  if (!query.tools_json.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(tools, ParseJson(query.tools_json, "tools"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string prompt, text::RenderChat(messages, tools, chat_));
  return tokenizer_.Encode(prompt + query.answer_lead, /*add_bos=*/false);
}

Status EngineTarget::Submit(Pending& pending) {
  const Query& query = *pending.query;
  Reply& reply = pending.reply;
  NIBBLE_ASSIGN_OR_RETURN(reply.prompt_ids, PromptIds(query));
  reply.n_prompt_tokens = static_cast<int64_t>(reply.prompt_ids.size());
  engine::Request request{.prompt_ids = reply.prompt_ids,
                          .max_tokens = query.reads_prompt ? 1 : query.max_tokens,
                          .sampling = {},
                          .n_top_logprobs = query.n_top_logprobs,
                          .logprobs = query.n_top_logprobs > 0,
                          .prompt_logprobs = query.reads_prompt};
  if (!query.ignore_eos) request.stop_ids = stop_ids_;
  NIBBLE_ASSIGN_OR_RETURN(pending.request_id, engine_.Submit(std::move(request)));
  return {};
}

Result<Step> EngineTarget::ToStep(int32_t token_id, double logprob,
                                  std::span<const engine::TokenLogprob> top) const {
  Step step{.logprob = logprob};
  NIBBLE_ASSIGN_OR_RETURN(step.token, tokenizer_.Decode({token_id}, /*skip_special=*/false));
  for (const engine::TokenLogprob& entry : top) {
    NIBBLE_ASSIGN_OR_RETURN(std::string token, tokenizer_.Decode({entry.id}, false));
    step.top.push_back({.token = std::move(token), .logprob = entry.logprob});
  }
  return step;
}

Result<bool> EngineTarget::Take(Pending& pending, const engine::Event& event) const {
  Reply& reply = pending.reply;
  const bool is_last = event.finish != engine::FinishReason::kNone;
  if (is_last) {
    reply.finish_reason = event.finish == engine::FinishReason::kStop ? "stop" : "length";
  }
  if (pending.query->reads_prompt) {
    NIBBLE_RETURN_IF_ERROR(TakePrompt(pending, event));
    return is_last;
  }
  if (reply.token_ids.empty()) {
    reply.first_token_s = pending.stopwatch.seconds();
    reply.n_cached_tokens = event.n_cached_tokens;
  }
  reply.token_ids.push_back(event.token_id);
  if (pending.query->n_top_logprobs > 0) {
    NIBBLE_ASSIGN_OR_RETURN(Step step, ToStep(event.token_id, event.logprob, event.top));
    reply.steps.push_back(std::move(step));
  }
  return is_last;
}

Status EngineTarget::TakePrompt(Pending& pending, const engine::Event& event) const {
  Reply& reply = pending.reply;
  for (size_t i = 0; i < event.prompt_logprobs.size(); ++i) {
    NIBBLE_ASSIGN_OR_RETURN(
        Step step, ToStep(reply.prompt_ids[i + 1], event.prompt_logprobs[i], event.prompt_top[i]));
    reply.steps.push_back(std::move(step));
  }
  return {};
}

// Tells the answer's text and calls apart, as a server does.
void EngineTarget::ReadCalls(Reply* reply) const {
  text::AnswerParser parser(tokenizer_, text::AnswerFormat::kChatTools);
  const auto take = [&](text::AnswerDelta delta) {
    reply->text += delta.content;
    for (text::ToolCall& call : delta.calls) {
      reply->tool_calls.push_back(
          {.name = std::move(call.name), .arguments_json = std::move(call.arguments)});
    }
  };
  std::span<const int32_t> ids = reply->token_ids;
  if (reply->finish_reason == "stop") ids = ids.first(ids.size() - 1);
  for (const int32_t id : ids) take(parser.Push(id));
  take(parser.Finish());
  if (!reply->tool_calls.empty()) reply->finish_reason = "tool_calls";
}

Result<Reply> EngineTarget::Finish(Pending pending) const {
  Reply& reply = pending.reply;
  if (pending.query->tools_json.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(reply.text, tokenizer_.Decode(reply.token_ids, /*skip_special=*/true));
  } else {
    ReadCalls(&reply);
  }
  reply.n_completion_tokens = static_cast<int64_t>(reply.token_ids.size());
  reply.time_s = pending.stopwatch.seconds();
  return std::move(reply);
}

void EngineTarget::AskAll(std::span<const Query> queries, int concurrency,
                          const OnReply& on_reply) {
  std::list<Pending> running;
  size_t n_begun = 0;
  bool goes_on = true;
  // Ends a query, with an error or with what came.
  const auto end = [&](std::list<Pending>::iterator pending, Status status) {
    const size_t index = pending->index;
    Result<Reply> reply = status.has_value()
                              ? Finish(std::move(*pending))
                              : Result<Reply>(std::unexpected(std::move(status).error()));
    running.erase(pending);
    goes_on = on_reply(index, std::move(reply)) && goes_on;
  };
  while (goes_on && (n_begun < queries.size() || !running.empty())) {
    while (n_begun < queries.size() && std::cmp_less(running.size(), concurrency)) {
      running.push_back({.query = &queries[n_begun], .index = n_begun});
      ++n_begun;
      if (Status status = Submit(running.back()); !status.has_value()) {
        end(std::prev(running.end()), std::move(status));
      }
    }
    for (const engine::Event& event : engine_.Step()) {
      const auto pending = std::ranges::find(running, event.request_id, &Pending::request_id);
      if (pending == running.end()) continue;  // of a query that ended with an error
      const Result<bool> is_last = Take(*pending, event);
      if (!is_last.has_value()) {
        engine_.Cancel(event.request_id);
        end(pending, std::unexpected(is_last.error()));
      } else if (*is_last) {
        end(pending, {});
      }
    }
  }
  for (const Pending& pending : running) engine_.Cancel(pending.request_id);
}

}  // namespace nibble::measure
