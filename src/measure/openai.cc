#include "measure/openai.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace nibble::measure {
namespace {

std::string TextOr(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t CountOr(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<int64_t>() : 0;
}

const Json& PartOf(const Json& object, const char* key) {
  static const Json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

std::vector<int32_t> IdsOf(const Json& ids) {
  return ids.is_array() ? ids.get<std::vector<int32_t>>() : std::vector<int32_t>();
}

void TakeUsage(const Json& usage, Reply* reply) {
  if (!usage.is_object()) return;
  reply->n_prompt_tokens = CountOr(usage, "prompt_tokens");
  reply->n_completion_tokens = CountOr(usage, "completion_tokens");
  const Json& details = PartOf(usage, "prompt_tokens_details");
  if (details.is_object()) reply->n_cached_tokens = CountOr(details, "cached_tokens");
}

// [{"token", "logprob", "top_logprobs": [{"token", "logprob"}]}]
void TakeSteps(const Json& content, Reply* reply) {
  for (const Json& entry : content) {
    Step step{.token = entry.at("token"), .logprob = entry.at("logprob").get<double>()};
    for (const Json& other : entry.value("top_logprobs", Json::array())) {
      step.top.push_back({.token = other.at("token"), .logprob = other.at("logprob")});
    }
    reply->steps.push_back(std::move(step));
  }
}

// {"tokens", "token_logprobs", "top_logprobs": [{token: logprob}]}
void TakeLegacySteps(const Json& logprobs, Reply* reply) {
  const Json& tokens = logprobs.at("tokens");
  for (size_t i = 0; i < tokens.size(); ++i) {
    Step step{.token = tokens[i]};
    const Json& logprob = logprobs.at("token_logprobs").at(i);
    if (logprob.is_number()) step.logprob = logprob.get<double>();
    const Json& tops = PartOf(logprobs, "top_logprobs");
    if (tops.is_array() && tops.at(i).is_object()) {
      for (const auto& [token, value] : tops[i].items()) {
        step.top.push_back({.token = token, .logprob = value});
      }
      std::ranges::stable_sort(step.top, std::ranges::greater(), &TokenLogprob::logprob);
    }
    reply->steps.push_back(std::move(step));
  }
}

void TakeLogprobs(const Json& choice, Reply* reply) {
  const Json& logprobs = PartOf(choice, "logprobs");
  if (const Json& content = PartOf(logprobs, "content"); content.is_array()) {
    TakeSteps(content, reply);
  } else if (PartOf(logprobs, "tokens").is_array()) {
    TakeLegacySteps(logprobs, reply);
  }
}

void TakeToolCalls(const Json& message, Reply* reply) {
  const Json& calls = PartOf(message, "tool_calls");
  if (!calls.is_array()) return;
  for (const Json& call : calls) {
    const Json& function = call.at("function");
    const Json& arguments = PartOf(function, "arguments");
    reply->tool_calls.push_back({.name = function.at("name"),
                                 .arguments_json = arguments.is_string()
                                                       ? arguments.get<std::string>()
                                                       : arguments.dump()});
  }
}

// With echo the prompt's tokens come first; the first one has no likelihood.
Status KeepPromptSteps(Reply* reply) {
  const auto n = static_cast<size_t>(reply->n_prompt_tokens);
  if (n == 0 || reply->steps.size() < n) {
    return Fail("the server gives no log-probabilities of the prompt (echo with logprobs)");
  }
  reply->steps.resize(n);
  reply->steps.erase(reply->steps.begin());
  reply->text.clear();
  return {};
}

Json MessagesOf(const Query& query) {
  Json messages = Json::array();
  for (const Message& message : query.messages) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  if (!query.answer_lead.empty()) {
    messages.push_back({{"role", "assistant"}, {"content", query.answer_lead}});
  }
  return messages;
}

}  // namespace

Json RequestBody(const Query& query, const std::string& model) {
  Json body = {{"model", model},
               {"temperature", 0},
               {"max_tokens", query.reads_prompt ? 1 : query.max_tokens}};
  if (query.ignore_eos) body["ignore_eos"] = true;
  if (query.stream) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
  }
  if (query.messages.empty()) {
    body["prompt"] = query.text;
    if (query.n_top_logprobs > 0) body["logprobs"] = query.n_top_logprobs;
    if (query.reads_prompt) body["echo"] = true;
    return body;
  }
  body["messages"] = MessagesOf(query);
  if (!query.answer_lead.empty()) {
    body["continue_final_message"] = true;
    body["add_generation_prompt"] = false;
  }
  if (query.n_top_logprobs > 0) {
    body["logprobs"] = true;
    body["top_logprobs"] = query.n_top_logprobs;
  }
  if (!query.tools_json.empty()) {
    body["tools"] = Json::parse(query.tools_json);
    body["tool_choice"] = "auto";
  }
  return body;
}

Result<Reply> ParseReply(std::string_view body, const Query& query) {
  NIBBLE_ASSIGN_OR_RETURN(const Json json, ParseJson(body, "reply"));
  try {
    Reply reply;
    const Json& choice = json.at("choices").at(0);
    const Json& message = PartOf(choice, "message");
    reply.text = message.is_object() ? TextOr(message, "content") : TextOr(choice, "text");
    TakeToolCalls(message, &reply);
    reply.finish_reason = TextOr(choice, "finish_reason");
    TakeUsage(PartOf(json, "usage"), &reply);
    TakeLogprobs(choice, &reply);
    const Json& prompt_ids = PartOf(json, "prompt_token_ids");
    reply.prompt_ids =
        IdsOf(prompt_ids.is_null() ? PartOf(choice, "prompt_token_ids") : prompt_ids);
    reply.token_ids = IdsOf(PartOf(choice, "token_ids"));
    if (query.reads_prompt) NIBBLE_RETURN_IF_ERROR(KeepPromptSteps(&reply));
    return reply;
  } catch (const Json::exception& fault) {
    return Fail("reply: not as OpenAI's API has it: {}", fault.what());
  }
}

std::string ErrorMessage(std::string_view body) {
  constexpr size_t kMostBytes = 300;
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  for (const Json* place : {&PartOf(json, "error"), &json}) {
    if (place->is_object() && place->contains("message")) return TextOr(*place, "message");
  }
  return QuoteForMessage(body.substr(0, kMostBytes));
}

bool StreamedReply::Push(std::string_view piece) {
  const bool had_token = has_token_;
  for (const char c : piece) {
    if (c != '\n') {
      line_ += c;
      continue;
    }
    std::string_view line = line_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    constexpr std::string_view kData = "data:";
    if (line.starts_with(kData)) TakeEvent(line.substr(kData.size()));
    line_.clear();
  }
  return has_token_ && !had_token;
}

void StreamedReply::TakeEvent(std::string_view data) {
  if (data.starts_with(' ')) data.remove_prefix(1);
  if (data == "[DONE]") {
    has_ended_ = true;
    return;
  }
  const Json json = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.contains("error")) {
    if (fault_.empty()) fault_ = "stream: " + ErrorMessage(data);
    return;
  }
  TakeUsage(PartOf(json, "usage"), &reply_);
  const Json& choices = PartOf(json, "choices");
  if (!choices.is_array() || choices.empty()) return;
  const Json& choice = choices[0];
  const Json& delta = PartOf(choice, "delta");
  const std::string text = delta.is_object() ? TextOr(delta, "content") : TextOr(choice, "text");
  reply_.text += text;
  has_token_ = has_token_ || !text.empty();
  if (const std::string reason = TextOr(choice, "finish_reason"); !reason.empty()) {
    reply_.finish_reason = reason;
  }
}

Result<Reply> StreamedReply::Finish() {
  if (!fault_.empty()) return std::unexpected(Error{fault_});
  if (!has_ended_) return Fail("stream: ended without [DONE]");
  return std::move(reply_);
}

}  // namespace nibble::measure
