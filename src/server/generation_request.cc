#include "server/generation_request.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <random>
#include <utility>

#include "base/ascii.h"
#include "base/json.h"
#include "server/request_fields.h"
#include "server/tool_choice.h"
#include "text/chat_value.h"

namespace nibble::server {
namespace {

constexpr int kMaxChoices = 128;
constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr int64_t kMaxTokens = 1 << 30;  // more than any context

ApiResult<Json> ParseBody(std::string_view body) {
  Result<Json> json = ParseJson(body, "body");
  if (json.has_value()) return *std::move(json);
  return std::unexpected(ApiError{.message = json.error().message, .code = "invalid_json"});
}

uint64_t RandomSeed() {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

// Keys of a logit_bias are token ids in quotes.
void ReadLogitBias(RequestFields& fields, int64_t n_token_ids,
                   std::vector<engine::LogitBias>* biases) {
  const Json* object = fields.Find("logit_bias");
  if (object == nullptr) return;
  RequestFields members(*object, "logit_bias.");
  if (object->is_object()) {
    for (const auto& [key, value] : object->items()) {
      const bool is_id = !key.empty() && key.size() < 10 && std::ranges::all_of(key, IsAsciiDigit);
      const int64_t id = is_id ? std::stoi(key) : n_token_ids;
      if (id >= n_token_ids) {
        fields.Fault(BadField("logit_bias", "logit_bias: expected token ids from 0 to {}, found {}",
                              n_token_ids - 1, QuoteForMessage(key)));
        return;
      }
      biases->push_back(
          {.id = static_cast<int32_t>(id), .bias = members.Number(key, 0, -100, 100)});
    }
  }
  if (members.error().has_value()) fields.Fault(*members.error());
}

void ReadSampling(RequestFields& fields, const ServedModel& model, engine::Sampling* sampling) {
  *sampling = model.sampling;
  sampling->temperature = fields.Number("temperature", sampling->temperature, 0, 2);
  sampling->top_p = fields.Number("top_p", sampling->top_p, 0, 1);
  sampling->min_p = fields.Number("min_p", sampling->min_p, 0, 1);
  const auto top_k = fields.Integer("top_k", sampling->top_k, -1, INT32_MAX);
  sampling->top_k = static_cast<int>(std::max<int64_t>(top_k, 0));
  sampling->presence_penalty = fields.Number("presence_penalty", sampling->presence_penalty, -2, 2);
  sampling->frequency_penalty =
      fields.Number("frequency_penalty", sampling->frequency_penalty, -2, 2);
  sampling->repetition_penalty =
      fields.Number("repetition_penalty", sampling->repetition_penalty, 0.01, 100);
  const bool has_seed = fields.Find("seed") != nullptr;
  const int64_t seed = fields.Integer("seed", 0, INT64_MIN, INT64_MAX);
  sampling->seed = has_seed ? static_cast<uint64_t>(seed) : RandomSeed();
  ReadLogitBias(fields, model.n_token_ids, &sampling->logit_bias);
}

void ReadStops(RequestFields& fields, const ServedModel& model, GenerationRequest* request) {
  request->stop = fields.Strings("stop", kMaxStopStrings);
  for (const std::string& stop : request->stop) {
    if (stop.size() <= kMaxStopBytes) continue;
    fields.Fault(BadField("stop", "stop: expected strings of at most {} bytes, found {}",
                          kMaxStopBytes, stop.size()));
  }
  request->engine.stop_ids = fields.TokenIds("stop_token_ids", model.n_token_ids);
  if (!fields.Bool("ignore_eos", false)) {
    std::vector<int32_t>& ids = request->engine.stop_ids;
    ids.insert(ids.end(), model.stop_ids.begin(), model.stop_ids.end());
  }
}

// What both kinds of request share.
void ReadCommon(RequestFields& fields, const ServedModel& model, GenerationRequest* request) {
  request->model = fields.String("model", model.names[0]);
  if (std::ranges::find(model.names, request->model) == model.names.end()) {
    fields.Fault({.status = 404,
                  .message = fmt::format("The model {} does not exist; there is {}",
                                         QuoteForMessage(request->model), model.names[0]),
                  .param = "model",
                  .code = "model_not_found"});
  }
  request->n = static_cast<int>(fields.Integer("n", 1, 1, kMaxChoices));
  request->stream = fields.Bool("stream", false);
  if (const Json* options = fields.Find("stream_options"); options != nullptr) {
    RequestFields members(*options, "stream_options.");
    request->include_usage = members.Bool("include_usage", false);
    members.Ignore(
        std::array<std::string_view, 2>{"include_obfuscation", "continuous_usage_stats"});
    members.RefuseUnknown();
    if (members.error().has_value()) fields.Fault(*members.error());
    if (!request->stream) {
      fields.Fault(BadField("stream_options", "stream_options: only with stream: true"));
    }
  }
  ReadSampling(fields, model, &request->engine.sampling);
  ReadStops(fields, model, request);
  request->engine.min_tokens = static_cast<int>(fields.Integer("min_tokens", 0, 0, kMaxTokens));
  fields.Ignore(std::array<std::string_view, 7>{"user", "metadata", "store", "service_tier",
                                                "safety_identifier", "prompt_cache_key",
                                                "prediction"});
}

// 0: as many as there is room for.
void ReadMaxTokens(RequestFields& fields, GenerationRequest* request) {
  const int64_t old_name = fields.Integer("max_tokens", 0, 1, kMaxTokens);
  const int64_t new_name = fields.Integer("max_completion_tokens", old_name, 1, kMaxTokens);
  if (old_name != 0 && old_name != new_name) {
    fields.Fault(BadField("max_completion_tokens",
                          "max_completion_tokens: {}, but max_tokens, its old name, is {}",
                          new_name, old_name));
  }
  request->engine.max_tokens = static_cast<int>(new_name);
}

void ReadChatLogprobs(RequestFields& fields, GenerationRequest* request) {
  request->engine.logprobs = fields.Bool("logprobs", false);
  const bool has_top = fields.Find("top_logprobs") != nullptr;
  request->engine.n_top_logprobs = static_cast<int>(fields.Integer("top_logprobs", 0, 0, 20));
  if (has_top && !request->engine.logprobs) {
    fields.Fault(BadField("top_logprobs", "top_logprobs: only with logprobs: true"));
  }
}

void ReadThinking(RequestFields& fields, text::ChatOptions* chat, GenerationRequest* request) {
  if (const Json* effort = fields.Find("reasoning_effort"); effort != nullptr) {
    static constexpr std::array<std::string_view, 6> kEfforts = {"none",   "minimal", "low",
                                                                 "medium", "high",    "xhigh"};
    const std::string name = fields.String("reasoning_effort", "");
    if (std::ranges::find(kEfforts, name) == kEfforts.end()) {
      fields.Fault(BadField("reasoning_effort", "reasoning_effort: expected one of {}",
                            fmt::join(kEfforts, ", ")));
    }
    chat->enable_thinking = name != "none";
  }
  if (const Json* arguments = fields.Find("chat_template_kwargs"); arguments != nullptr) {
    RequestFields members(*arguments, "chat_template_kwargs.");
    chat->enable_thinking = members.Bool("enable_thinking", chat->enable_thinking);
    members.RefuseUnknown();
    if (members.error().has_value()) fields.Fault(*members.error());
  }
  request->include_reasoning = fields.Bool("include_reasoning", true);
}

std::optional<PartMarks> MarksOf(const text::Tokenizer& tokenizer, std::string_view begin,
                                 std::string_view end) {
  const std::optional<text::TokenId> begin_id = tokenizer.IdOf(begin);
  const std::optional<text::TokenId> end_id = tokenizer.IdOf(end);
  if (!begin_id.has_value() || !end_id.has_value()) return std::nullopt;
  return PartMarks{.begin = *begin_id, .end = *end_id};
}

std::shared_ptr<const grammar::Grammar> GrammarOf(RequestFields& fields, const ServedModel& model,
                                                  const std::optional<AnswerShape>& shape) {
  if (!shape.has_value() || fields.error().has_value()) return nullptr;
  const auto made = model.grammars == nullptr
                        ? std::unexpected(Error{"not supported with this model's tokenizer"})
                        : model.grammars->Get(*shape);
  if (made.has_value()) return *made;
  fields.Fault(BadField(shape->field, "{}: {}", shape->field, made.error().message));
  return nullptr;
}

// An answer that must be a call is content of that shape, as far as its tokens go.
void ReadStructuredOutput(RequestFields& fields, std::string_view body, const ServedModel& model,
                          bool thinks, const ToolUse& tools, GenerationRequest* request) {
  const std::optional<AnswerShape> shape = ReadAnswerShape(fields, body);
  if (shape.has_value() && tools.is_forced()) {
    fields.Fault(BadField(shape->field,
                          "{}: not together with a tool_choice that makes the answer a call",
                          shape->field));
  }
  AnswerRules rules;
  rules.content = GrammarOf(fields, model, tools.is_forced() ? tools.calls : shape);
  if (!tools.is_forced()) rules.calls = GrammarOf(fields, model, tools.calls);
  if (rules.content == nullptr && rules.calls == nullptr) return;
  if (thinks) rules.thought = MarksOf(model.tokenizer, "<|channel>", "<channel|>");
  if (tools.choice == ToolChoice::kAuto) {
    rules.call = MarksOf(model.tokenizer, "<|tool_call>", "<tool_call|>");
  }
  request->new_constraint = [rules] { return NewAnswerConstraint(rules); };
}

void RefuseForChat(RequestFields& fields) {
  fields.Refuse("functions", nullptr, "not supported; use tools");
  fields.Refuse("function_call", nullptr, "not supported; use tool_choice");
  fields.Refuse("audio", nullptr, "this model answers in text only");
  fields.Refuse("modalities", Json::array({"text"}), "this model answers in text only");
  fields.Refuse("web_search_options", nullptr, "not supported");
  fields.Refuse("verbosity", "medium", "not supported");
  fields.Refuse("echo", false, "not supported in chats");
}

// "messages[3].content: expected ..." names messages[3].content.
std::string ParamOf(std::string_view message, std::string_view fallback) {
  const size_t end = message.find(": ");
  const std::string_view param = message.substr(0, end);
  const bool names_field = end != std::string_view::npos && param.starts_with(fallback);
  return std::string(names_field ? param : fallback);
}

ApiResult<Prompt> RenderPrompt(const Json& messages, const Json& tools,
                               const text::ChatOptions& options, const ServedModel& model) {
  Result<std::string> text = text::RenderChat(messages, tools, options);
  if (!text.has_value()) {
    const std::string& message = text.error().message;
    const std::string_view field = message.starts_with("tools") ? "tools" : "messages";
    return std::unexpected(
        ApiError{.message = message, .param = ParamOf(message, field), .code = "invalid_value"});
  }
  Prompt prompt{.ids = model.tokenizer.Encode(*text, false), .text = *std::move(text)};
  return prompt;
}

Status CheckRoom(const Prompt& prompt, int64_t context_tokens) {
  const auto n_tokens = static_cast<int64_t>(prompt.ids.size());
  if (n_tokens == 0) return Fail("expected at least one token, found none");
  if (n_tokens < context_tokens) return {};
  return Fail(
      "This model's maximum context length is {} tokens, of which at least one is for the "
      "answer. However, your prompt has {} tokens. Please shorten it.",
      context_tokens, n_tokens);
}

ApiResult<GenerationRequest> Finish(RequestFields& fields, GenerationRequest request,
                                    const ServedModel& model) {
  fields.RefuseUnknown();
  const std::string prompt_field = request.is_chat ? "messages" : "prompt";
  if (!fields.error().has_value() && request.n_choices() > kMaxChoices) {
    fields.Fault(BadField("n", "n: {} choices of {} prompts: expected at most {} in all", request.n,
                          request.prompts.size(), kMaxChoices));
  }
  for (const Prompt& prompt : request.prompts) {
    if (const Status room = CheckRoom(prompt, model.context_tokens); !room.has_value()) {
      fields.Fault({.message = room.error().message,
                    .param = prompt_field,
                    .code = prompt.ids.empty() ? "invalid_value" : "context_length_exceeded"});
    }
  }
  if (fields.error().has_value()) return std::unexpected(*fields.error());
  request.ignored = fields.ignored();
  return request;
}

ApiResult<GenerationRequest> ReadChat(const Json& json, std::string_view body,
                                      const ServedModel& model) {
  RequestFields fields(json);
  GenerationRequest request;
  text::ChatOptions chat = model.chat;
  ReadCommon(fields, model, &request);
  ReadMaxTokens(fields, &request);
  ReadChatLogprobs(fields, &request);
  ReadThinking(fields, &chat, &request);
  const Json* messages = fields.Find("messages");
  const Json* tools = fields.Find("tools");
  const ToolUse use = ReadTools(fields, body);
  request.tool_choice = use.choice;
  request.single_call = use.single_call;
  ReadStructuredOutput(fields, body, model, chat.enable_thinking, use, &request);
  RefuseForChat(fields);
  if (messages == nullptr) fields.Fault(BadField("messages", "messages: expected a list"));
  if (fields.error().has_value()) return std::unexpected(*fields.error());

  const bool offers_tools = request.tool_choice != ToolChoice::kNone;
  request.format = offers_tools ? text::AnswerFormat::kChatTools : text::AnswerFormat::kChat;
  auto prompt = RenderPrompt(*messages, offers_tools ? *tools : Json(), chat, model);
  if (!prompt.has_value()) return std::unexpected(prompt.error());
  request.prompts.push_back(*std::move(prompt));
  return Finish(fields, std::move(request), model);
}

// Text or ids of one prompt of a completion. <bos> comes first, and once.
ApiResult<Prompt> ReadPrompt(const Json& value, const ServedModel& model) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return Prompt{.ids = model.tokenizer.Encode(text, !text.starts_with("<bos>")), .text = text};
  }
  auto ids = ReadTokenIds(value, "prompt", model.n_token_ids);
  if (!ids.has_value()) return std::unexpected(ids.error());
  const Result<std::string> text = model.tokenizer.Decode(*ids, true);
  return Prompt{.ids = *std::move(ids), .text = text.value_or("")};
}

void ReadPrompts(RequestFields& fields, const ServedModel& model, GenerationRequest* request) {
  const Json* value = fields.Find("prompt");
  if (value == nullptr) {
    fields.Fault(BadField("prompt", "prompt: expected text or token ids"));
    return;
  }
  // A list of numbers is one prompt; any other list is one of prompts.
  const bool is_list = value->is_array() && (value->empty() || !(*value)[0].is_number());
  const Json list = is_list ? *value : Json::array({*value});
  if (list.empty() || list.size() > kMaxChoices) {
    fields.Fault(
        BadField("prompt", "prompt: expected 1 to {} prompts, found {}", kMaxChoices, list.size()));
    return;
  }
  for (const Json& entry : list) {
    auto prompt = ReadPrompt(entry, model);
    if (!prompt.has_value()) {
      fields.Fault(prompt.error());
      return;
    }
    request->prompts.push_back(*std::move(prompt));
  }
}

ApiResult<GenerationRequest> ReadCompletion(const Json& json, std::string_view body,
                                            const ServedModel& model) {
  RequestFields fields(json);
  GenerationRequest request;
  request.is_chat = false;
  ReadCommon(fields, model, &request);
  constexpr int kDefaultTokens = 16;  // OpenAI's
  request.engine.max_tokens =
      static_cast<int>(fields.Integer("max_tokens", kDefaultTokens, 1, kMaxTokens));
  request.echo = fields.Bool("echo", false);
  request.engine.logprobs = fields.Find("logprobs") != nullptr;
  request.engine.n_top_logprobs = static_cast<int>(fields.Integer("logprobs", 0, 0, 20));
  request.engine.prompt_logprobs = request.echo && request.engine.logprobs;
  fields.Refuse("suffix", "", "not supported");
  fields.Refuse("best_of", request.n, "not supported beyond n");
  ReadStructuredOutput(fields, body, model, /*thinks=*/false, {}, &request);
  ReadPrompts(fields, model, &request);
  return Finish(fields, std::move(request), model);
}

}  // namespace

ApiResult<GenerationRequest> ParseChatRequest(std::string_view body, const ServedModel& model) {
  const auto json = ParseBody(body);
  return json.has_value() ? ReadChat(*json, body, model) : std::unexpected(json.error());
}

ApiResult<GenerationRequest> ParseCompletionRequest(std::string_view body,
                                                    const ServedModel& model) {
  const auto json = ParseBody(body);
  return json.has_value() ? ReadCompletion(*json, body, model) : std::unexpected(json.error());
}

ApiResult<GenerationRequest> ParseInvocation(std::string_view body, const ServedModel& model) {
  const auto json = ParseBody(body);
  if (!json.has_value()) return std::unexpected(json.error());
  return text::Member(*json, "messages") != nullptr ? ReadChat(*json, body, model)
                                                    : ReadCompletion(*json, body, model);
}

ApiResult<Prompt> ParseTokenize(std::string_view body, const ServedModel& model) {
  const auto json = ParseBody(body);
  if (!json.has_value()) return std::unexpected(json.error());
  RequestFields fields(*json);
  fields.String("model", "");
  const std::string text = fields.String("prompt", "");
  const bool add_special_tokens = fields.Bool("add_special_tokens", true);
  text::ChatOptions chat = model.chat;
  chat.add_generation_prompt = fields.Bool("add_generation_prompt", true);
  const Json* messages = fields.Find("messages");
  const Json* tools = fields.Find("tools");
  const bool has_prompt = fields.Find("prompt") != nullptr;
  if (has_prompt == (messages != nullptr)) {
    fields.Fault(BadField("prompt", "expected either prompt or messages"));
  }
  if (has_prompt && tools != nullptr) fields.Fault(BadField("tools", "tools: only with messages"));
  fields.RefuseUnknown();
  if (fields.error().has_value()) return std::unexpected(*fields.error());
  if (!has_prompt) return RenderPrompt(*messages, tools == nullptr ? Json() : *tools, chat, model);
  const bool add_bos = add_special_tokens && !text.starts_with("<bos>");
  return Prompt{.ids = model.tokenizer.Encode(text, add_bos), .text = text};
}

ApiResult<std::vector<int32_t>> ParseDetokenize(std::string_view body, const ServedModel& model) {
  const auto json = ParseBody(body);
  if (!json.has_value()) return std::unexpected(json.error());
  RequestFields fields(*json);
  fields.String("model", "");
  if (fields.Find("tokens") == nullptr) {
    fields.Fault(BadField("tokens", "tokens: expected a list of token ids"));
  }
  std::vector<int32_t> ids = fields.TokenIds("tokens", model.n_token_ids);
  fields.RefuseUnknown();
  if (fields.error().has_value()) return std::unexpected(*fields.error());
  return ids;
}

}  // namespace nibble::server
