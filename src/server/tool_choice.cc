#include "server/tool_choice.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/json.h"
#include "text/chat_value.h"

namespace nibble::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

const Json* FunctionName(const Json& tool) {
  const Json* function = text::Member(tool, "function");
  const Json* name = function == nullptr ? nullptr : text::Member(*function, "name");
  return name != nullptr && name->is_string() ? name : nullptr;
}

// Sets what tool_choice says; the name of the only tool, if it names one.
std::string ReadChoice(RequestFields& fields, const Json& tools, const Json& choice, ToolUse* use) {
  if (choice == "none") {
    use->choice = ToolChoice::kNone;
    return "";
  }
  if (choice == "required") {
    use->choice = ToolChoice::kRequired;
    return "";
  }
  const Json* name = FunctionName(choice);
  if (name == nullptr) {
    fields.Fault(BadField("tool_choice",
                          "tool_choice: expected auto, none, required or {{\"type\": \"function\", "
                          "\"function\": {{\"name\": ...}}}}"));
    return "";
  }
  use->choice = ToolChoice::kNamed;
  use->single_call = true;
  const bool is_there = std::ranges::any_of(tools, [&](const Json& tool) {
    const Json* other = FunctionName(tool);
    return other != nullptr && *other == *name;
  });
  if (!is_there) {
    fields.Fault(BadField("tool_choice", "tool_choice: no tool is named {}",
                          QuoteForMessage(name->get_ref<const std::string&>())));
  }
  return name->get<std::string>();
}

// Tools as the grammar takes them (tool_calls.h). Where the answer need not be a call, those that
// are not strict take any arguments; none at all if no tool is strict.
std::string CallableTools(RequestFields& fields, std::string_view body, const ToolUse& use,
                          const std::string& only) {
  OrderedJson list = OrderedJson::array();
  bool any_strict = false;
  const OrderedJson whole = OrderedJson::parse(body);
  for (const OrderedJson& tool : whole["tools"]) {
    const OrderedJson& function = tool["function"];
    const OrderedJson strict = function.value("strict", OrderedJson(nullptr));
    if (!strict.is_null() && !strict.is_boolean()) {
      fields.Fault(BadField("tools", "tools: strict: expected true or false"));
    }
    const bool is_strict = strict == OrderedJson(true);
    any_strict |= is_strict;
    if (!only.empty() && function["name"] != only) continue;
    OrderedJson callable = {{"name", function["name"]}};
    if (use.is_forced() || is_strict) {
      callable["parameters"] = function.value("parameters", OrderedJson());
    } else {
      callable["parameters"] = {{"type", "object"}, {"additionalProperties", true}};
    }
    list.push_back(std::move(callable));
  }
  return use.is_forced() || any_strict ? list.dump() : "";
}

}  // namespace

ToolUse ReadTools(RequestFields& fields, std::string_view body) {
  ToolUse use;
  const Json* tools = fields.Find("tools");
  const Json* choice = fields.Find("tool_choice");
  use.single_call = !fields.Bool("parallel_tool_calls", true);
  if (!text::IsTruthy(tools)) {
    if (choice != nullptr && *choice != "auto" && *choice != "none") {
      fields.Fault(BadField("tool_choice", "tool_choice: only with tools"));
    }
    return use;
  }
  use.choice = ToolChoice::kAuto;
  std::string only;
  if (choice != nullptr && *choice != "auto") only = ReadChoice(fields, *tools, *choice, &use);
  // Tools that are none are refused where they are rendered.
  const bool are_tools = tools->is_array() && std::ranges::all_of(*tools, [](const Json& tool) {
                           return FunctionName(tool) != nullptr;
                         });
  if (use.choice == ToolChoice::kNone || !are_tools || fields.error().has_value()) return use;
  const std::string callable = CallableTools(fields, body, use, only);
  if (callable.empty()) return use;
  using Kind = AnswerShape::Kind;
  const bool is_one = use.single_call || !use.is_forced();
  use.calls = {
      .field = "tools", .kind = is_one ? Kind::kToolCall : Kind::kToolCalls, .text = callable};
  return use;
}

}  // namespace nibble::server
