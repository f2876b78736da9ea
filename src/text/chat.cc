#include "text/chat.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "base/mapped_file.h"
#include "text/chat_tools.h"
#include "text/chat_value.h"
#include "text/utf8.h"

namespace nibble::text {
namespace {

constexpr std::string_view kTurn = "<|turn>";
constexpr std::string_view kTurnEnd = "<turn|>\n";
constexpr std::string_view kThought = "<|channel>thought\n";
constexpr std::string_view kThoughtEnd = "<channel|>";

std::string RoleOf(const Json& message) { return message["role"].get<std::string>(); }

// Answers of earlier turns go back without their thoughts.
std::string WithoutThoughts(std::string_view text) {
  std::string kept;
  for (bool more = true; more;) {
    const size_t end = text.find(kThoughtEnd);
    more = end != std::string_view::npos;
    const std::string_view part = text.substr(0, end);
    kept += part.substr(0, part.find("<|channel>"));
    if (more) text.remove_prefix(end + kThoughtEnd.size());
  }
  return std::string(StripWhitespace(kept));
}

// The text of one entry of a content list.
Result<std::string> PartText(const Json& part, const std::string& where) {
  const Json* type = Member(part, "type");
  if (type == nullptr || !type->is_string())
    return Fail("{}: expected an object with a type", where);
  if (*type != "text") {
    return Fail("{}: content of type {} is not supported, only text", where, type->dump());
  }
  const Json* text = Member(part, "text");
  if (text == nullptr || !text->is_string()) return Fail("{}: expected text", where);
  return text->get<std::string>();
}

// The texts of a message's content: none, one, or one a part.
Result<std::vector<std::string>> ContentTexts(const Json& message, const std::string& where) {
  std::vector<std::string> texts;
  const Json* content = Member(message, "content");
  if (content == nullptr || content->is_null()) return texts;
  if (content->is_string()) {
    texts.push_back(content->get<std::string>());
    return texts;
  }
  if (!content->is_array()) return Fail("{}.content: expected text or a list of parts", where);
  for (size_t i = 0; i < content->size(); ++i) {
    NIBBLE_ASSIGN_OR_RETURN(std::string text,
                            PartText((*content)[i], fmt::format("{}.content[{}]", where, i)));
    texts.push_back(std::move(text));
  }
  return texts;
}

Status CheckMessages(const Json& messages) {
  static constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user",
                                                             "assistant", "tool"};
  if (!messages.is_array() || messages.empty()) return Fail("messages: expected a list, not empty");
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json* role = Member(messages[i], "role");
    if (role == nullptr || !role->is_string()) return Fail("messages[{}]: expected a role", i);
    if (std::ranges::find(kRoles, role->get_ref<const std::string&>()) == kRoles.end()) {
      return Fail("messages[{}]: unknown role {}, expected one of {}", i, role->dump(),
                  fmt::join(kRoles, ", "));
    }
    for (const std::string_view key : {"tool_calls", "tool_responses"}) {
      const Json* list = Member(messages[i], key);
      if (list == nullptr || list->is_null()) continue;
      if (!list->is_array()) return Fail("messages[{}].{}: expected a list", i, key);
      if (list->empty()) continue;
      if (*role != "assistant") return Fail("messages[{}].{}: not by an assistant", i, key);
    }
  }
  return {};
}

Result<std::string> FormatCall(const Json& call, const std::string& where) {
  const Json* function = Member(call, "function");
  const Json* name = function == nullptr ? nullptr : Member(*function, "name");
  if (name == nullptr || !name->is_string()) {
    return Fail("{}: expected {{\"function\": {{\"name\", \"arguments\"}}}}", where);
  }
  std::string inside;
  if (const Json* arguments = Member(*function, "arguments"); arguments != nullptr) {
    std::optional<Json> parsed;
    if (arguments->is_string()) {
      inside = arguments->get<std::string>();
      if (auto object = ParseJson(inside, where); object.has_value()) parsed = *std::move(object);
    } else if (arguments->is_object()) {
      parsed = *arguments;
    } else if (!arguments->is_null()) {
      return Fail("{}.function.arguments: expected an object or a string", where);
    }
    if (parsed.has_value() && parsed->is_object()) {
      inside = FormatValue(*parsed, false);
      inside = inside.substr(1, inside.size() - 2);  // the braces are written below
    }
  }
  return fmt::format("<|tool_call>call:{}{{{}}}<tool_call|>", name->get_ref<const std::string&>(),
                     inside);
}

std::string FormatReply(std::string_view name, const Json& body) {
  const std::string inside = body.is_object()
                                 ? FormatValue(body, false)
                                 : fmt::format("{{value:{}}}", FormatValue(body, false));
  return fmt::format("<|tool_response>response:{}{}<tool_response|>", name, inside);
}

// The reply in a message of role "tool" to one of `calls`.
Result<std::string> FormatToolMessage(const Json& message, const Json& calls,
                                      const std::string& where) {
  const auto value_of = [](const Json& object, std::string_view key) {
    const Json* value = Member(object, key);
    return value == nullptr ? Json() : *value;
  };
  Json name = value_of(message, "name");
  const Json id = value_of(message, "tool_call_id");
  for (const Json& call : calls) {
    if (value_of(call, "id") == id) name = call["function"]["name"];
  }
  if (!name.is_string()) {
    return Fail("{}: tool_call_id {} matches no call before it, and there is no name", where,
                id.dump());
  }
  Json body = value_of(message, "content");
  if (body.is_array()) {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ContentTexts(message, where));
    body = fmt::format("{}", fmt::join(texts, ""));
  }
  return FormatReply(name.get_ref<const std::string&>(), body);
}

// Replies that stand in the assistant's own message, as Google's examples have them.
Result<std::string> FormatOwnReply(const Json& reply, const std::string& where) {
  const Json* body = Member(reply, "response");
  if (body == nullptr) return Fail("{}: expected an object with a response", where);
  const Json* name = Member(reply, "name");
  if (name != nullptr && !name->is_string()) return Fail("{}.name: expected text", where);
  return FormatReply(name == nullptr ? "unknown" : name->get_ref<const std::string&>(), *body);
}

class ChatRenderer {
 public:
  ChatRenderer(const Json& messages, const ChatOptions& options)
      : messages_(messages), options_(options) {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (RoleOf(messages[i]) == "user") last_user_idx_ = static_cast<int64_t>(i);
    }
  }

  Result<std::string> Render(const Json& tools) {
    text_ = "<bos>";
    const std::string first_role = RoleOf(messages_[0]);
    const bool has_system = first_role == "system" || first_role == "developer";
    if (has_system || options_.enable_thinking || IsTruthy(&tools)) {
      NIBBLE_RETURN_IF_ERROR(AddSystemTurn(has_system, tools));
    }
    for (size_t i = has_system ? 1 : 0; i < messages_.size();) {
      NIBBLE_ASSIGN_OR_RETURN(i, AddMessage(i));
    }
    if (options_.add_generation_prompt && state_ == State::kClosed) {
      text_ += "<|turn>model\n";
      if (options_.closes_empty_thought && !options_.enable_thinking) {
        text_.append(kThought).append(kThoughtEnd);
      }
    }
    return text_;
  }

 private:
  // What the last message that is no tool reply left behind.
  enum class State { kClosed, kCalled, kReplied };

  Status AddSystemTurn(bool has_message, const Json& tools) {
    text_ += "<|turn>system\n";
    if (options_.enable_thinking) text_ += "<|think|>\n";
    if (has_message) {
      NIBBLE_ASSIGN_OR_RETURN(const auto texts, ContentTexts(messages_[0], "messages[0]"));
      for (const std::string& text : texts) text_ += StripWhitespace(text);
    }
    if (IsTruthy(&tools)) {
      if (!tools.is_array()) return Fail("tools: expected a list");
      for (size_t i = 0; i < tools.size(); ++i) {
        NIBBLE_ASSIGN_OR_RETURN(const std::string declaration,
                                FormatDeclaration(tools[i], fmt::format("tools[{}]", i)));
        text_ += fmt::format("<|tool>{}<tool|>", declaration);
      }
    }
    text_ += kTurnEnd;
    return {};
  }

  // Adds message i with the tool messages that answer it; gives the index of the next one.
  Result<size_t> AddMessage(size_t i) {
    const Json& message = messages_[i];
    const std::string where = fmt::format("messages[{}]", i);
    const std::string role = RoleOf(message);
    if (role == "tool") return Fail("{}: a tool message without a tool call before it", where);
    const bool is_model = role == "assistant";
    // Two answers in a row (a call with its result, then words) are one turn of the model.
    if (!is_model || previous_role_ != "assistant") {
      text_.append(kTurn).append(is_model ? "model" : role) += '\n';
    }
    previous_role_ = role;
    state_ = State::kClosed;
    NIBBLE_RETURN_IF_ERROR(AddThought(i, where));
    NIBBLE_ASSIGN_OR_RETURN(const size_t next, AddCalls(i, where));
    NIBBLE_ASSIGN_OR_RETURN(const auto texts, ContentTexts(message, where));
    for (const std::string& text : texts) {
      text_ += is_model ? WithoutThoughts(text) : std::string(StripWhitespace(text));
    }
    if (state_ == State::kCalled) {
      text_ += "<|tool_response>";
    } else if (state_ == State::kClosed || IsTruthy(Member(message, "content"))) {
      text_ += kTurnEnd;
    }
    return next;
  }

  // Thoughts are kept only with calls of the turn that is still going on.
  Status AddThought(size_t i, const std::string& where) {
    const Json& message = messages_[i];
    const Json* thought = Member(message, "reasoning");
    if (!IsTruthy(thought)) thought = Member(message, "reasoning_content");
    if (!IsTruthy(thought) || !IsTruthy(Member(message, "tool_calls")) ||
        static_cast<int64_t>(i) <= last_user_idx_) {
      return {};
    }
    if (!thought->is_string()) return Fail("{}: expected reasoning as text", where);
    text_.append(kThought).append(thought->get_ref<const std::string&>()) += '\n';
    text_ += kThoughtEnd;
    return {};
  }

  // Calls of message i and the replies to them; gives the index of the next message.
  Result<size_t> AddCalls(size_t i, const std::string& where) {
    const Json* calls = Member(messages_[i], "tool_calls");
    const bool has_calls = IsTruthy(calls);
    for (size_t k = 0; has_calls && k < calls->size(); ++k) {
      NIBBLE_ASSIGN_OR_RETURN(const std::string call,
                              FormatCall((*calls)[k], fmt::format("{}.tool_calls[{}]", where, k)));
      text_ += call;
      state_ = State::kCalled;
    }
    if (const Json* replies = Member(messages_[i], "tool_responses"); IsTruthy(replies)) {
      for (size_t k = 0; k < replies->size(); ++k) {
        NIBBLE_ASSIGN_OR_RETURN(
            const std::string reply,
            FormatOwnReply((*replies)[k], fmt::format("{}.tool_responses[{}]", where, k)));
        text_ += reply;
        state_ = State::kReplied;
      }
      return i + 1;
    }
    size_t next = i + 1;
    for (; has_calls && next < messages_.size() && RoleOf(messages_[next]) == "tool"; ++next) {
      NIBBLE_ASSIGN_OR_RETURN(
          const std::string reply,
          FormatToolMessage(messages_[next], *calls, fmt::format("messages[{}]", next)));
      text_ += reply;
      state_ = State::kReplied;
    }
    return next;
  }

  const Json& messages_;
  const ChatOptions& options_;
  int64_t last_user_idx_ = -1;
  State state_ = State::kClosed;
  std::string previous_role_;
  std::string text_;
};

}  // namespace

Result<std::string> ReadChatTemplate(const std::filesystem::path& model_dir) {
  std::error_code ignored;
  std::filesystem::path file = model_dir / "chat_template.jinja";
  if (std::filesystem::exists(file, ignored)) return ReadTextFile(file);
  file = model_dir / "tokenizer_config.json";
  NIBBLE_ASSIGN_OR_RETURN(const Json config, ReadJsonFile(file));
  const Json* value = Member(config, "chat_template");
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  return Fail("{}: no chat_template, and no chat_template.jinja beside it", file.string());
}

Result<bool> TemplateClosesEmptyThought(std::string_view source, std::string_view where) {
  if (source.find(kTurn) == std::string::npos) {
    return Fail("{}: not a chat template of Gemma 4: it never writes {}", where, kTurn);
  }
  // As the template spells it: the line break is an escape inside a string of Jinja.
  return source.find("<|channel>thought\\n<channel|>") != std::string::npos;
}

Result<bool> ClosesEmptyThought(const std::filesystem::path& model_dir) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string source, ReadChatTemplate(model_dir));
  return TemplateClosesEmptyThought(source, model_dir.string());
}

Result<std::string> RenderChat(const Json& messages, const Json& tools,
                               const ChatOptions& options) {
  NIBBLE_RETURN_IF_ERROR(CheckMessages(messages));
  return ChatRenderer(messages, options).Render(tools);
}

}  // namespace nibble::text
