#include "grammar/tool_calls.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/json.h"
#include "grammar/json_rules.h"
#include "grammar/json_schema.h"
#include "grammar/schema_keywords.h"
#include "grammar/vocabulary.h"

namespace nibble::grammar {
namespace {

NodeId AddMark(ProgramBuilder& builder, NodeId from, uint8_t mark) {
  const NodeId end = builder.NewNode();
  builder.Bytes(from, mark, mark, end);
  return end;
}

// {...} of one tool.
Result<RuleId> AddArguments(ProgramBuilder& builder, JsonRules& rules, Schema parameters) {
  if (parameters.is_null()) parameters = Schema::object();
  if (!parameters.is_object()) return Fail("parameters: expected a schema of type object");
  const bool names_none = parameters.value("properties", Schema::object()) == Schema::object() &&
                          !parameters.contains("additionalProperties") &&
                          !parameters.contains("required");
  if (names_none) parameters["additionalProperties"] = false;
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> types, TypesOf(parameters, "#"));
  if (types != std::vector<std::string>{"object"}) {
    return Fail("parameters: expected a schema of type object");
  }
  return AddSchema(builder, rules, parameters);
}

Result<NodeId> AddCall(ProgramBuilder& builder, JsonRules& rules, NodeId from, const Schema& tool) {
  const std::string& name = tool.at("name").get_ref<const std::string&>();
  const bool is_readable = !name.empty() && name.find_first_of("{} \t\r\n") == std::string::npos;
  if (!is_readable) return Fail("tool {}: not a name that can be called", QuoteForMessage(name));
  const auto arguments = AddArguments(builder, rules, tool.value("parameters", Schema()));
  if (!arguments.has_value()) {
    return Fail("tool {}: {}", QuoteForMessage(name), arguments.error().message);
  }
  return builder.Call(builder.Literal(from, name), *arguments);
}

}  // namespace

Result<Program> CompileToolCalls(std::string_view tools, bool allows_several) {
  NIBBLE_RETURN_IF_ERROR(ParseJson(tools, "tools"));
  ProgramBuilder builder;
  JsonRules rules(builder, Notation::kToolCall);
  const RuleId whole = builder.NewRule();
  const RuleId call = builder.NewRule();
  const NodeId begin =
      builder.Literal(AddMark(builder, builder.start(call), kCallBeginMark), "call:");
  const NodeId end = builder.NewNode();
  for (const Schema& tool : Schema::parse(tools)) {
    const NodeId name = builder.NewNode();
    builder.Empty(begin, name);
    NIBBLE_ASSIGN_OR_RETURN(const NodeId behind, AddCall(builder, rules, name, tool));
    builder.Empty(behind, end);
  }
  builder.Finish(AddMark(builder, end, kCallEndMark));
  builder.Finish(builder.Repeat(builder.start(whole), 1,
                                allows_several ? ProgramBuilder::kNoLimit : 1,
                                [&](NodeId from) { return builder.Call(from, call); }));
  auto program = std::move(builder).Build();
  if (!program.has_value()) return Fail("tools: {}", program.error().message);
  return program;
}

}  // namespace nibble::grammar
