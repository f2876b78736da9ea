#include "measure/bfcl.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

namespace nibble::measure {
namespace {

// Python's type of a JSON value.
enum class PyType { kNone, kBool, kInt, kFloat, kStr, kList, kDict };

PyType TypeOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::boolean:
      return PyType::kBool;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return PyType::kInt;
    case Json::value_t::number_float:
      return PyType::kFloat;
    case Json::value_t::string:
      return PyType::kStr;
    case Json::value_t::array:
      return PyType::kList;
    case Json::value_t::object:
      return PyType::kDict;
    default:
      return PyType::kNone;
  }
}

std::optional<PyType> TypeNamed(const std::string& name) {
  static const std::map<std::string, PyType> kTypes = {
      {"string", PyType::kStr},   {"integer", PyType::kInt}, {"float", PyType::kFloat},
      {"boolean", PyType::kBool}, {"array", PyType::kList},  {"tuple", PyType::kList},
      {"dict", PyType::kDict},    {"any", PyType::kStr}};
  const auto found = kTypes.find(name);
  return found == kTypes.end() ? std::nullopt : std::optional(found->second);
}

// Python's ==, for which True is 1 and 1 is 1.0.
bool PyEquals(const Json& a, const Json& b) {
  if (a.is_array() && b.is_array()) return std::ranges::equal(a, b, PyEquals);
  if (a.is_object() && b.is_object()) {
    return a.size() == b.size() && std::ranges::all_of(a.items(), [&](const auto& item) {
             return b.contains(item.key()) && PyEquals(item.value(), b[item.key()]);
           });
  }
  const auto number = [](const Json& value) {
    return value.is_boolean() ? Json(value.get<bool>() ? 1 : 0) : value;
  };
  return number(a) == number(b);
}

bool IsAmong(const Json& value, const Json& values) {
  return std::ranges::any_of(values, [&](const Json& other) { return PyEquals(value, other); });
}

// Strings are compared without blanks, marks and case.
Json Standard(const Json& value) {
  if (!value.is_string()) return value;
  std::string text;
  for (char c : value.get_ref<const std::string&>()) {
    if (std::string_view(" ,./-_*^").contains(c)) continue;
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    text += c == '\'' ? '"' : c;
  }
  return text;
}

Json StandardEach(const Json& values) {
  Json standard = Json::array();
  for (const Json& value : values) standard.push_back(Standard(value));
  return standard;
}

// "" among the accepted values: the parameter may be left out.
bool IsLeftOut(const Json& answer) {
  return answer.is_string() && answer.get_ref<const std::string&>().empty();
}

// The type of the first accepted value.
std::optional<PyType> TypeOfAnswers(const Json& answers) {
  for (const Json& answer : answers) {
    if (!IsLeftOut(answer)) return TypeOf(answer);
  }
  return std::nullopt;
}

struct TypeVerdict {
  bool is_valid = false;
  bool is_variable = false;  // a variable's name in the place of a value
};

TypeVerdict CheckType(const Json& value, const Json& answers, PyType expected,
                      std::optional<PyType> nested) {
  const std::optional<PyType> of_answers = TypeOfAnswers(answers);
  const bool is_variable = of_answers.has_value() && *of_answers != expected;
  if (TypeOf(value) == expected) {
    if (!nested.has_value()) return {true, is_variable};
    for (const Json& answer : answers) {
      const bool fits = !answer.is_array() || std::ranges::all_of(value, [&](const Json& element) {
        return CheckType(element, answer, *nested, std::nullopt).is_valid;
      });
      if (fits) return {true, is_variable};
    }
    return {false, false};
  }
  return {of_answers.has_value() && TypeOf(value) == *of_answers, true};
}

bool DictMatches(const Json& value, const Json& answer) {
  if (!value.is_object() || !answer.is_object()) return false;
  for (const auto& [key, element] : value.items()) {
    if (!answer.contains(key)) return false;
    if (!IsAmong(Standard(element), StandardEach(answer[key]))) return false;
  }
  return std::ranges::all_of(answer.items(), [&](const auto& item) {
    return value.contains(item.key()) || IsAmong("", item.value());
  });
}

bool MatchesDict(const Json& value, const Json& answers) {
  return std::ranges::any_of(answers, [&](const Json& answer) {
    return !IsLeftOut(answer) && DictMatches(value, answer);
  });
}

bool MatchesListOfDicts(const Json& value, const Json& answers) {
  return std::ranges::any_of(answers, [&](const Json& answer) {
    if (!answer.is_array()) return value.empty();  // "" counts as an empty list
    return std::ranges::equal(value, answer, DictMatches);
  });
}

bool MatchesList(const Json& value, const Json& answers) {
  const Json standard = StandardEach(value);
  return std::ranges::any_of(answers, [&](const Json& answer) {
    return PyEquals(standard, answer.is_array() ? StandardEach(answer) : Json::array());
  });
}

std::string ValueFault(const std::string& name, Json value, const Json& description,
                       const Json& answers) {
  const std::string type_name = description.value("type", "");
  const std::optional<PyType> expected = TypeNamed(type_name);
  if (!expected.has_value()) return fmt::format("parameter {}: unknown type {}", name, type_name);
  std::optional<PyType> nested;
  if (*expected == PyType::kList) {
    nested = TypeNamed(description.value(Json::json_pointer("/items/type"), std::string()));
  }
  if (type_name == "float" && TypeOf(value) == PyType::kInt) value = value.get<double>();
  const TypeVerdict type = CheckType(value, answers, *expected, nested);
  if (!type.is_valid) return fmt::format("parameter {}: wrong type: {}", name, value.dump());
  bool matches = false;
  if (type.is_variable ||
      (*expected != PyType::kDict && *expected != PyType::kList && *expected != PyType::kStr)) {
    matches = IsAmong(value, answers);
  } else if (*expected == PyType::kDict) {
    matches = MatchesDict(value, answers);
  } else if (*expected == PyType::kList) {
    matches =
        nested == PyType::kDict ? MatchesListOfDicts(value, answers) : MatchesList(value, answers);
  } else {
    matches = IsAmong(Standard(value), StandardEach(answers));
  }
  return matches ? "" : fmt::format("parameter {}: wrong value: {}", name, value.dump());
}

std::string Underscored(std::string name) {
  std::ranges::replace(name, '.', '_');
  return name;
}

Json ToSchema(const Json& description) {
  static const std::map<std::string, std::string> kTypes = {
      {"dict", "object"}, {"float", "number"}, {"tuple", "array"}};
  if (!description.is_object()) return description;
  Json schema = description;
  if (const std::string type = description.value("type", ""); type == "any") {
    schema.erase("type");
  } else if (const auto found = kTypes.find(type); found != kTypes.end()) {
    schema["type"] = found->second;
  }
  if (schema.contains("items")) schema["items"] = ToSchema(schema["items"]);
  if (schema.contains("properties")) {
    for (Json& property : schema["properties"]) property = ToSchema(property);
  }
  return schema;
}

}  // namespace

std::string CallFault(const Json& function, const Json& answer,
                      const std::vector<ToolCall>& calls) {
  if (calls.size() != 1) return fmt::format("{} calls, expected one", calls.size());
  const Json arguments = Json::parse(calls[0].arguments_json, nullptr, /*allow_exceptions=*/false);
  if (!arguments.is_object()) return "arguments are no JSON object";
  const std::string name = Underscored(function.at("name"));
  if (calls[0].name != name) return fmt::format("called {}, expected {}", calls[0].name, name);
  const Json& answers = answer.begin().value();
  const Json& parameters = function.at("parameters");
  for (const Json& required : parameters.value("required", Json::array())) {
    if (!arguments.contains(required)) {
      return fmt::format("parameter {} is missing", required.get<std::string>());
    }
  }
  for (const auto& [key, value] : arguments.items()) {
    if (!parameters.at("properties").contains(key) || !answers.contains(key)) {
      return fmt::format("parameter {} is not expected", key);
    }
    std::string fault = ValueFault(key, value, parameters["properties"][key], answers[key]);
    if (!fault.empty()) return fault;
  }
  for (const auto& [key, accepted] : answers.items()) {
    if (!arguments.contains(key) && !IsAmong("", accepted)) {
      return fmt::format("parameter {} is missing", key);
    }
  }
  return "";
}

Json ToTool(const Json& function) {
  Json declaration = function;
  declaration["name"] = Underscored(function.at("name"));
  declaration["parameters"] = ToSchema(function.at("parameters"));
  return {{"type", "function"}, {"function", std::move(declaration)}};
}

}  // namespace nibble::measure
