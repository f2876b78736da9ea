#include "grammar/json_schema.h"

#include <algorithm>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/json.h"
#include "grammar/formats.h"
#include "grammar/json_rules.h"
#include "grammar/regex.h"
#include "grammar/schema_keywords.h"
#include "text/chat_value.h"

namespace nibble::grammar {
namespace {

constexpr int64_t kNoLimit = ProgramBuilder::kNoLimit;

class Compiler {
 public:
  Compiler(const Schema& root, ProgramBuilder& builder, JsonRules& json)
      : root_(root), builder_(builder), json_(json) {}

  Result<RuleId> Compile() {
    const RuleId whole = builder_.NewRule();
    rules_["#"] = whole;
    pending_.push_back("#");
    while (!pending_.empty() && !builder_.is_full()) {
      const std::string pointer = std::move(pending_.front());
      pending_.pop_front();
      const RuleId rule = rules_.at(pointer);
      NIBBLE_ASSIGN_OR_RETURN(const Schema* schema, Find(pointer));
      NIBBLE_ASSIGN_OR_RETURN(const NodeId end, AddValue(builder_.start(rule), *schema, pointer));
      builder_.Finish(end);
    }
    return whole;
  }

 private:
  Result<const Schema*> Find(const std::string& pointer) const {
    try {
      return &root_.at(Schema::json_pointer(pointer.substr(1)));
    } catch (const nlohmann::json::exception&) {
      return At(pointer, "a reference to it, and it is not there");
    }
  }

  // The rule of a subschema, compiled later: so references may go anywhere.
  RuleId RuleOf(const std::string& pointer) {
    const auto known = rules_.find(pointer);
    if (known != rules_.end()) return known->second;
    const RuleId rule = builder_.NewRule();
    rules_.emplace(pointer, rule);
    pending_.push_back(pointer);
    return rule;
  }

  // NOLINTNEXTLINE(misc-no-recursion): as deep as the JSON is, which ParseJson bounds.
  Result<NodeId> AddValue(NodeId from, const Schema& schema, const std::string& pointer) {
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) return At(pointer, "false accepts nothing");
      return builder_.Call(from, json_.Value());
    }
    if (!schema.is_object()) return At(pointer, "expected an object, found {}", schema.type_name());
    NIBBLE_RETURN_IF_ERROR(RefuseUnsupported(schema, pointer));
    for (const std::string_view keyword : {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(keyword)) continue;
      NIBBLE_RETURN_IF_ERROR(RefuseBeside(schema, pointer, keyword));
      if (keyword == "$ref") return AddReference(from, schema["$ref"], pointer);
      if (keyword == "const")
        return AddConstants(from, Schema::array({schema["const"]}), schema, pointer);
      if (keyword == "enum") return AddConstants(from, schema["enum"], schema, pointer);
      return AddAnyOf(from, schema, std::string(keyword), pointer);
    }
    return AddTypes(from, schema, pointer);
  }

  Result<NodeId> AddReference(NodeId from, const Schema& target, const std::string& pointer) {
    if (!target.is_string()) return At(pointer, "$ref: expected a string");
    const auto& reference = target.get_ref<const std::string&>();
    if (!reference.starts_with("#") || (reference.size() > 1 && reference[1] != '/')) {
      return At(pointer, "$ref {}: only references like \"#/$defs/name\" are supported",
                QuoteForMessage(reference));
    }
    NIBBLE_RETURN_IF_ERROR(Find(reference));
    return builder_.Call(from, RuleOf(reference));
  }

  Result<NodeId> AddConstants(NodeId from, const Schema& values, const Schema& schema,
                              const std::string& pointer) {
    if (!values.is_array() || values.empty()) return At(pointer, "enum: expected values");
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> types, TypesOf(schema, pointer));
    std::vector<std::string> texts;
    for (const Schema& value : values) {
      const bool fits = types.empty() || std::ranges::any_of(types, [&](const std::string& type) {
                          return HasType(value, type);
                        });
      if (fits) texts.push_back(json_.TextOf(value));
    }
    if (texts.empty()) return At(pointer, "none of its values has its type");
    return builder_.OneOf(from, texts);
  }

  // NOLINTNEXTLINE(misc-no-recursion)
  Result<NodeId> AddAnyOf(NodeId from, const Schema& schema, const std::string& keyword,
                          const std::string& pointer) {
    const Schema& branches = schema[keyword];
    if (!branches.is_array() || branches.empty()) {
      return At(pointer, "{}: expected a list of schemas", keyword);
    }
    if (keyword == "allOf" && branches.size() > 1) {
      return At(pointer, "\"allOf\" of more than one schema is not supported");
    }
    if (schema.contains("type") && !std::ranges::all_of(branches, [&](const Schema& branch) {
          return branch.is_object() && branch.contains("type");
        })) {
      return At(pointer, "\"type\" beside \"{}\" is not supported", keyword);
    }
    const NodeId end = builder_.NewNode();
    for (size_t i = 0; i < branches.size() && !builder_.is_full(); ++i) {
      const NodeId begin = builder_.NewNode();
      builder_.Empty(from, begin);
      NIBBLE_ASSIGN_OR_RETURN(
          const NodeId branch_end,
          AddValue(begin, branches[i], fmt::format("{}/{}/{}", pointer, keyword, i)));
      builder_.Empty(branch_end, end);
    }
    return end;
  }

  // NOLINTNEXTLINE(misc-no-recursion)
  Result<NodeId> AddTypes(NodeId from, const Schema& schema, const std::string& pointer) {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> types, TypesOf(schema, pointer));
    if (types.empty()) return builder_.Call(from, json_.Value());
    if (types.size() == 1) return AddType(from, types[0], schema, pointer);
    const NodeId end = builder_.NewNode();
    for (const std::string& type : types) {
      const NodeId begin = builder_.NewNode();
      builder_.Empty(from, begin);
      NIBBLE_ASSIGN_OR_RETURN(const NodeId own_end, AddType(begin, type, schema, pointer));
      builder_.Empty(own_end, end);
    }
    return end;
  }

  // NOLINTNEXTLINE(misc-no-recursion)
  Result<NodeId> AddType(NodeId from, const std::string& type, const Schema& schema,
                         const std::string& pointer) {
    if (type == "null") return json_.AddNull(from);
    if (type == "boolean") return builder_.OneOf(from, {"true", "false"});
    if (type == "object") return AddObject(from, schema, pointer);
    if (type == "array") return AddArray(from, schema, pointer);
    if (type == "string") return AddString(from, schema, pointer);
    return AddNumber(from, type == "integer", schema, pointer);
  }

  Result<NodeId> AddString(NodeId from, const Schema& schema, const std::string& pointer) {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t least, Count(schema, "minLength", 0, pointer));
    NIBBLE_ASSIGN_OR_RETURN(const int64_t most, Count(schema, "maxLength", kNoLimit, pointer));
    if (most != kNoLimit && most < least) return At(pointer, "maxLength is below minLength");
    const bool has_length = schema.contains("minLength") || schema.contains("maxLength");
    for (const char* keyword : {"pattern", "format"}) {
      const auto found = schema.find(keyword);
      if (found == schema.end()) continue;
      const bool is_pattern = std::string_view(keyword) == "pattern";
      if (has_length || (is_pattern && schema.contains("format"))) {
        return At(pointer, "\"{}\" beside another restriction of the string is not supported",
                  keyword);
      }
      if (!found->is_string()) return At(pointer, "{}: expected a string", keyword);
      std::string_view expression = found->get_ref<const std::string&>();
      if (!is_pattern) {
        const std::string_view name = expression;
        expression = ExpressionOfFormat(name);
        if (expression.empty()) {
          return At(pointer, "format {} is not supported", QuoteForMessage(name));
        }
      }
      return AddPattern(from, expression, is_pattern ? Matching::kSomewhere : Matching::kWhole,
                        pointer);
    }
    if (!has_length) return builder_.Call(from, json_.String());
    const RuleId rule = builder_.NewRule();
    builder_.Finish(json_.AddString(builder_.start(rule), least, most));
    return builder_.Call(from, rule);
  }

  Result<NodeId> AddPattern(NodeId from, std::string_view expression, Matching matching,
                            const std::string& pointer) {
    const RuleId rule = builder_.NewRule();
    const NodeId begin = json_.AddQuote(builder_.start(rule));
    const auto end = AddRegex(builder_, begin, expression, matching, json_.spelling());
    if (!end.has_value()) return At(pointer, "pattern: {}", end.error().message);
    builder_.Finish(json_.AddQuote(*end));
    return builder_.Call(from, rule);
  }

  Result<NodeId> AddNumber(NodeId from, bool is_integer, const Schema& schema,
                           const std::string& pointer) {
    NIBBLE_ASSIGN_OR_RETURN(const auto low, ReadBound(schema, true, is_integer, pointer));
    NIBBLE_ASSIGN_OR_RETURN(const auto high, ReadBound(schema, false, is_integer, pointer));
    if (!low.has_value() && !high.has_value()) {
      return builder_.Call(from, is_integer ? json_.Integer() : json_.Number());
    }
    if (low.has_value() && high.has_value() &&
        (low->value > high->value ||
         (low->value == high->value && (low->is_exclusive || high->is_exclusive)))) {
      return At(pointer, "no number is within its bounds");
    }
    const RuleId rule = builder_.NewRule();
    const NodeId start = builder_.start(rule);
    const auto value = [](const Bound& bound) { return bound.value; };
    builder_.Finish(is_integer
                        ? json_.AddInteger(start, low.transform(value), high.transform(value))
                        : json_.AddNumber(start, low, high));
    return builder_.Call(from, rule);
  }

  // `name: value`, as a rule.
  // NOLINTNEXTLINE(misc-no-recursion)
  Result<RuleId> Pair(const std::string& name, const Schema& value, const std::string& pointer) {
    const RuleId rule = builder_.NewRule();
    const NodeId colon = builder_.Literal(builder_.start(rule), json_.NameOf(name) + ":");
    NIBBLE_ASSIGN_OR_RETURN(const NodeId end, AddValue(json_.AddSpace(colon), value, pointer));
    builder_.Finish(end);
    return rule;
  }

  struct Members {
    std::vector<std::pair<RuleId, bool>> pairs;  // and whether it is required
    std::vector<std::string> names;
    std::optional<RuleId> additional;
  };

  std::vector<std::string> NamesInOrder(const Schema& properties) const {
    std::vector<std::string> names;
    if (json_.notation() == Notation::kJson) {
      for (const auto& [name, value] : properties.items()) names.push_back(name);
    } else {
      const Json members(properties);
      for (const auto& [name, value] : text::SortedItems(members)) names.emplace_back(name);
    }
    return names;
  }

  // NOLINTNEXTLINE(misc-no-recursion)
  Result<Members> ReadMembers(const Schema& schema, const std::string& pointer) {
    Members members;
    const Schema properties = schema.value("properties", Schema::object());
    const Schema required = schema.value("required", Schema::array());
    if (!properties.is_object()) return At(pointer, "properties: expected an object");
    if (!required.is_array()) return At(pointer, "required: expected a list of names");
    std::set<std::string> missing;
    for (const Schema& name : required) {
      if (!name.is_string()) return At(pointer, "required: expected a list of names");
      missing.insert(name);
    }
    for (const std::string& name : NamesInOrder(properties)) {
      NIBBLE_ASSIGN_OR_RETURN(
          const RuleId pair,
          Pair(name, properties[name], fmt::format("{}/properties/{}", pointer, Escaped(name))));
      members.pairs.emplace_back(pair, missing.erase(name) > 0);
      members.names.push_back(name);
    }
    const Schema additional = schema.value("additionalProperties", Schema(properties.empty()));
    const std::string where = pointer + "/additionalProperties";
    if (additional == Schema(false)) {
      if (missing.empty()) return members;
      return At(pointer, "required: {} is no property", QuoteForMessage(*missing.begin()));
    }
    for (const std::string& name : missing) {
      NIBBLE_ASSIGN_OR_RETURN(const RuleId pair, Pair(name, additional, where));
      members.pairs.emplace_back(pair, true);
      members.names.push_back(name);
    }
    members.additional = builder_.NewRule();
    const NodeId start = builder_.start(*members.additional);
    const NodeId name = json_.AddOtherName(start, members.names);
    NIBBLE_ASSIGN_OR_RETURN(
        const NodeId end, AddValue(json_.AddSpace(builder_.Literal(name, ":")), additional, where));
    builder_.Finish(end);
    return members;
  }

  // NOLINTNEXTLINE(misc-no-recursion)
  Result<NodeId> AddObject(NodeId from, const Schema& schema, const std::string& pointer) {
    NIBBLE_ASSIGN_OR_RETURN(const Members members, ReadMembers(schema, pointer));
    // Before member i, where none has been written yet, and where one has.
    NodeId none = json_.AddSpace(builder_.Literal(from, "{"));
    NodeId some = builder_.NewNode();
    const auto add = [&](RuleId pair, NodeId next) {
      builder_.Empty(builder_.Call(none, pair), next);
      builder_.Empty(builder_.Call(json_.AddSpace(builder_.Literal(some, ",")), pair), next);
    };
    for (const auto& [pair, is_required] : members.pairs) {
      const NodeId next_none = builder_.NewNode();
      const NodeId next_some = builder_.NewNode();
      if (builder_.is_full()) break;
      add(pair, next_some);
      if (!is_required) {
        builder_.Empty(none, next_none);
        builder_.Empty(some, next_some);
      }
      none = next_none;
      some = next_some;
    }
    if (members.additional.has_value()) add(*members.additional, some);
    const NodeId end = json_.AddSpace(some);
    builder_.Empty(none, end);
    return builder_.Literal(end, "}");
  }

  // NOLINTNEXTLINE(misc-no-recursion)
  Result<RuleId> Element(const Schema& schema, const std::string& pointer) {
    const RuleId rule = builder_.NewRule();
    NIBBLE_ASSIGN_OR_RETURN(const NodeId end, AddValue(builder_.start(rule), schema, pointer));
    builder_.Finish(end);
    return rule;
  }

  // NOLINTNEXTLINE(misc-no-recursion)
  Result<NodeId> AddArray(NodeId from, const Schema& schema, const std::string& pointer) {
    NIBBLE_ASSIGN_OR_RETURN(const int64_t least, Count(schema, "minItems", 0, pointer));
    NIBBLE_ASSIGN_OR_RETURN(const int64_t most, Count(schema, "maxItems", kNoLimit, pointer));
    const Schema first = schema.value("prefixItems", Schema::array());
    const Schema items = schema.value("items", Schema(true));
    if (!first.is_array()) return At(pointer, "prefixItems: expected a list of schemas");
    const bool has_items = items != Schema(false);
    const auto n_first = static_cast<int64_t>(first.size());
    if ((most != kNoLimit && most < least) || (!has_items && least > n_first)) {
      return At(pointer, "no array has as many items as minItems says");
    }
    const NodeId closing = builder_.NewNode();
    NodeId node = json_.AddSpace(builder_.Literal(from, "["));
    if (least == 0) builder_.Empty(node, closing);
    const auto is_open = [&](int64_t n) { return most == kNoLimit || n < most; };
    int64_t n = 0;
    const auto add_item = [&](RuleId rule) {
      if (n > 0) node = json_.AddSpace(builder_.Literal(node, ","));
      node = builder_.Call(node, rule);
      if (++n >= least) builder_.Empty(node, closing);
    };
    for (int64_t i = 0; i < n_first && is_open(n); ++i) {
      const auto where = fmt::format("{}/prefixItems/{}", pointer, i);
      NIBBLE_ASSIGN_OR_RETURN(const RuleId rule, Element(first[i], where));
      add_item(rule);
    }
    if (has_items && is_open(n)) {
      NIBBLE_ASSIGN_OR_RETURN(const RuleId rule, Element(items, pointer + "/items"));
      if (n == 0) add_item(rule);
      const int64_t n_more = std::max<int64_t>(0, least - n);
      node =
          builder_.Repeat(node, n_more, most == kNoLimit ? kNoLimit : most - n, [&](NodeId begin) {
            return builder_.Call(json_.AddSpace(builder_.Literal(begin, ",")), rule);
          });
      builder_.Empty(node, closing);
    }
    return builder_.Literal(json_.AddSpace(closing), "]");
  }

  const Schema& root_;
  ProgramBuilder& builder_;
  JsonRules& json_;
  std::map<std::string, RuleId> rules_;  // by JSON pointer
  std::deque<std::string> pending_;      // to be compiled
};

}  // namespace

Result<RuleId> AddSchema(ProgramBuilder& builder, JsonRules& rules, const Schema& schema) {
  return Compiler(schema, builder, rules).Compile();
}

Result<Program> CompileJsonSchema(std::string_view schema) {
  // The first reading refuses what is no JSON, too deep, or has a name twice.
  NIBBLE_RETURN_IF_ERROR(ParseJson(schema, "schema"));
  const Schema root = Schema::parse(schema);
  ProgramBuilder builder;
  JsonRules rules(builder, Notation::kJson);
  NIBBLE_RETURN_IF_ERROR(AddSchema(builder, rules, root));
  auto program = std::move(builder).Build();
  if (!program.has_value()) return Fail("schema: {}", program.error().message);
  return program;
}

}  // namespace nibble::grammar
