#include "server/answer_json.h"

#include <random>

#include "base/json.h"

namespace nibble::server {
namespace {

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json BytesOf(const TokenText& token) {
  Json bytes = Json::array();
  for (const char c : token.bytes) bytes.push_back(static_cast<uint8_t>(c));
  return bytes;
}

Json ChatLogprobs(const AnswerPiece& piece) {
  Json content = Json::array();
  for (const TokenLogprobs& entry : piece.logprobs) {
    Json top = Json::array();
    for (const auto& [token, logprob] : entry.top) {
      top.push_back({{"token", token.text}, {"logprob", logprob}, {"bytes", BytesOf(token)}});
    }
    content.push_back({{"token", entry.token.text},
                       {"logprob", entry.logprob},
                       {"bytes", BytesOf(entry.token)},
                       {"top_logprobs", std::move(top)}});
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// The older form, of /v1/completions.
Json CompletionLogprobs(const AnswerPiece& piece) {
  Json json = {{"tokens", Json::array()},
               {"token_logprobs", Json::array()},
               {"top_logprobs", Json::array()},
               {"text_offset", piece.text_offsets}};
  for (const TokenLogprobs& entry : piece.logprobs) {
    const bool has_value = !piece.has_first_token || &entry != piece.logprobs.data();
    Json top = Json::object();
    for (const auto& [token, logprob] : entry.top) top[token.text] = logprob;
    json["tokens"].push_back(entry.token.text);
    json["token_logprobs"].push_back(has_value ? Json(entry.logprob) : Json());
    json["top_logprobs"].push_back(has_value && !entry.top.empty() ? std::move(top) : Json());
  }
  return json;
}

Json Logprobs(const AnswerHead& head, const AnswerPiece& piece) {
  if (!head.shows_logprobs) return nullptr;
  return head.is_chat ? ChatLogprobs(piece) : CompletionLogprobs(piece);
}

Json Calls(const AnswerPiece& piece, bool has_index) {
  Json calls = Json::array();
  for (const text::ToolCall& call : piece.calls) {
    Json json = {{"id", RandomId("call_")},
                 {"type", "function"},
                 {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
    if (has_index) json["index"] = piece.first_call_idx + static_cast<int>(calls.size());
    calls.push_back(std::move(json));
  }
  return calls;
}

Json Head(const AnswerHead& head, bool is_chunk) {
  const std::string_view object = !head.is_chat ? "text_completion"
                                  : is_chunk    ? "chat.completion.chunk"
                                                : "chat.completion";
  return {{"id", head.id},
          {"object", object},
          {"created", head.created_s},
          {"model", head.model},
          {"system_fingerprint", "nibble-" NIBBLE_VERSION}};
}

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.n_prompt_tokens},
          {"completion_tokens", usage.n_completion_tokens},
          {"total_tokens", usage.n_prompt_tokens + usage.n_completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.n_cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.n_reasoning_tokens}}}};
}

Json ChoiceJson(const AnswerHead& head, const AnswerPiece& piece) {
  return {{"index", piece.choice_idx},
          {"logprobs", Logprobs(head, piece)},
          {"finish_reason", piece.finish_reason.empty() ? Json() : Json(piece.finish_reason)}};
}

Json Message(const AnswerPiece& piece) {
  Json message = {{"role", "assistant"}, {"content", piece.content}, {"refusal", nullptr}};
  if (!piece.reasoning.empty()) message["reasoning_content"] = piece.reasoning;
  if (!piece.calls.empty()) {
    message["tool_calls"] = Calls(piece, false);
    if (piece.content.empty()) message["content"] = nullptr;
  }
  return message;
}

Json DeltaJson(const AnswerPiece& piece) {
  Json delta = Json::object();
  if (!piece.content.empty()) delta["content"] = piece.content;
  if (!piece.reasoning.empty()) delta["reasoning_content"] = piece.reasoning;
  if (!piece.calls.empty()) delta["tool_calls"] = Calls(piece, true);
  return delta;
}

}  // namespace

std::string RoleChunk(const AnswerHead& head, int choice_idx) {
  Json json = Head(head, true);
  json["choices"] = Json::array({{{"index", choice_idx},
                                  {"delta", {{"role", "assistant"}, {"content", ""}}},
                                  {"logprobs", nullptr},
                                  {"finish_reason", nullptr}}});
  return Dump(json);
}

std::string Chunk(const AnswerHead& head, const AnswerPiece& piece) {
  Json choice = ChoiceJson(head, piece);
  if (head.shows_logprobs && piece.logprobs.empty()) choice["logprobs"] = nullptr;
  if (head.is_chat) {
    choice["delta"] = DeltaJson(piece);
  } else {
    choice["text"] = piece.content;
  }
  Json json = Head(head, true);
  json["choices"] = Json::array({std::move(choice)});
  return Dump(json);
}

std::string UsageChunk(const AnswerHead& head, const Usage& usage) {
  Json json = Head(head, true);
  json["choices"] = Json::array();
  json["usage"] = UsageJson(usage);
  return Dump(json);
}

std::string WholeAnswer(const AnswerHead& head, const std::vector<AnswerPiece>& pieces,
                        const Usage& usage) {
  Json json = Head(head, false);
  json["choices"] = Json::array();
  for (const AnswerPiece& piece : pieces) {
    Json choice = ChoiceJson(head, piece);
    if (head.is_chat) {
      choice["message"] = Message(piece);
    } else {
      choice["text"] = piece.content;
    }
    json["choices"].push_back(std::move(choice));
  }
  json["usage"] = UsageJson(usage);
  return Dump(json);
}

std::string SseEvent(std::string_view data) { return fmt::format("data: {}\n\n", data); }

std::string RandomId(std::string_view prefix) {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}{:016x}{:08x}", prefix, random(), static_cast<uint32_t>(random()));
}

}  // namespace nibble::server
