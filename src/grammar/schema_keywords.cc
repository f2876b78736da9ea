#include "grammar/schema_keywords.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

namespace nibble::grammar {
namespace {

constexpr double kMaxBound = 1e17;

constexpr std::string_view kUnsupported[] = {"not",
                                             "if",
                                             "then",
                                             "else",
                                             "dependentSchemas",
                                             "dependentRequired",
                                             "dependencies",
                                             "patternProperties",
                                             "propertyNames",
                                             "unevaluatedProperties",
                                             "unevaluatedItems",
                                             "minProperties",
                                             "maxProperties",
                                             "uniqueItems",
                                             "contains",
                                             "minContains",
                                             "maxContains",
                                             "multipleOf",
                                             "$dynamicRef",
                                             "$recursiveRef",
                                             "$anchor",
                                             "additionalItems"};
// Beside enum, const, $ref, anyOf and their like these would have to hold as well.
constexpr std::string_view kAssertions[] = {"properties",
                                            "required",
                                            "additionalProperties",
                                            "items",
                                            "prefixItems",
                                            "minItems",
                                            "maxItems",
                                            "minLength",
                                            "maxLength",
                                            "pattern",
                                            "format",
                                            "minimum",
                                            "maximum",
                                            "exclusiveMinimum",
                                            "exclusiveMaximum",
                                            "enum",
                                            "const",
                                            "$ref",
                                            "anyOf",
                                            "oneOf",
                                            "allOf"};

}  // namespace

std::string Escaped(std::string_view name) {
  std::string pointer;
  for (const char c : name) {
    if (c == '~') {
      pointer += "~0";
    } else if (c == '/') {
      pointer += "~1";
    } else {
      pointer += c;
    }
  }
  return pointer;
}

Status RefuseUnsupported(const Schema& schema, const std::string& pointer) {
  for (const std::string_view keyword : kUnsupported) {
    const auto found = schema.find(keyword);
    if (found != schema.end() && *found != Schema(false)) {
      return At(pointer, "\"{}\" is not supported", keyword);
    }
  }
  return {};
}

Status RefuseBeside(const Schema& schema, const std::string& pointer, std::string_view keyword) {
  for (const std::string_view other : kAssertions) {
    if (other != keyword && schema.contains(other)) {
      return At(pointer, "\"{}\" beside \"{}\" is not supported", other, keyword);
    }
  }
  return {};
}

bool HasType(const Schema& value, const std::string& type) {
  if (type == "number") return value.is_number();
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number_float() && std::nearbyint(value.get<double>()) == value.get<double>());
  }
  return type == value.type_name();  // nlohmann's names are JSON Schema's
}

Result<std::vector<std::string>> TypesOf(const Schema& schema, const std::string& pointer) {
  static const std::set<std::string, std::less<>> kTypes = {"null",   "boolean", "object", "array",
                                                            "number", "integer", "string"};
  std::vector<std::string> types;
  if (const auto type = schema.find("type"); type != schema.end()) {
    for (const Schema& name : type->is_array() ? *type : Schema::array({*type})) {
      if (!name.is_string() || !kTypes.contains(name.get_ref<const std::string&>())) {
        return At(pointer, "type: found {}, which is none", QuoteForMessage(name.dump()));
      }
      types.push_back(name);
    }
    if (types.empty()) return At(pointer, "type: expected at least one");
    return types;
  }
  const auto has = [&](std::initializer_list<const char*> keywords) {
    return std::ranges::any_of(keywords, [&](const char* k) { return schema.contains(k); });
  };
  if (has({"properties", "required", "additionalProperties"})) types.emplace_back("object");
  if (has({"items", "prefixItems", "minItems", "maxItems"})) types.emplace_back("array");
  if (has({"minLength", "maxLength", "pattern", "format"})) types.emplace_back("string");
  if (has({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})) {
    types.emplace_back("number");
  }
  return types;
}

Result<int64_t> Count(const Schema& schema, const char* keyword, int64_t otherwise,
                      const std::string& pointer) {
  const auto found = schema.find(keyword);
  if (found == schema.end()) return otherwise;
  if (found->is_number()) {
    const auto value = found->get<double>();
    if (value >= 0 && value <= kMaxBound && std::nearbyint(value) == value) {
      return static_cast<int64_t>(value);
    }
  }
  return At(pointer, "{}: expected a number of 0 or more, found {}", keyword,
            QuoteForMessage(found->dump()));
}

Result<std::optional<Bound>> ReadBound(const Schema& schema, bool is_low, bool is_integer,
                                       const std::string& pointer) {
  std::optional<Bound> bound;
  for (const bool is_exclusive : {false, true}) {
    const char* keyword = is_low ? (is_exclusive ? "exclusiveMinimum" : "minimum")
                                 : (is_exclusive ? "exclusiveMaximum" : "maximum");
    const auto found = schema.find(keyword);
    if (found == schema.end()) continue;
    if (!found->is_number()) return At(pointer, "{}: expected a number", keyword);
    const auto value = found->get<double>();
    if (!(std::fabs(value) <= kMaxBound)) {
      return At(pointer, "{}: numbers beyond 1e17 are not supported", keyword);
    }
    const bool is_whole = std::nearbyint(value) == value;
    if (!is_whole && !is_integer) {
      return At(pointer, "{} {}: a bound of \"number\" that is no whole number is not supported",
                keyword, value);
    }
    Bound own{.value = static_cast<int64_t>(is_low ? std::ceil(value) : std::floor(value)),
              .is_exclusive = is_exclusive && is_whole};
    if (is_integer && own.is_exclusive) own = {.value = own.value + (is_low ? 1 : -1)};
    const bool is_tighter = !bound.has_value() || own.value == bound->value ||
                            (is_low ? own.value > bound->value : own.value < bound->value);
    if (is_tighter) bound = own;
  }
  return bound;
}

}  // namespace nibble::grammar
