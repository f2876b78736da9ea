#include "text/chat_tools.h"

#include <algorithm>
#include <array>

#include "text/chat_value.h"

namespace nibble::text {
namespace {

std::string Upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

Result<std::string> TextOf(const Json& value, std::string_view where) {
  if (!value.is_string()) return Fail("{}: expected text, found {}", where, value.dump());
  return value.get<std::string>();
}

// `type | upper`: "" if absent; a list of types as Python prints it.
Result<std::string> TypeName(const Json* type, std::string_view where) {
  if (type == nullptr) return "";
  if (type->is_null()) return "NONE";
  if (!type->is_array()) {
    NIBBLE_ASSIGN_OR_RETURN(std::string name, TextOf(*type, fmt::format("{}.type", where)));
    return Upper(std::move(name));
  }
  std::string names;
  for (const Json& entry : *type) {
    NIBBLE_ASSIGN_OR_RETURN(std::string name, TextOf(entry, fmt::format("{}.type", where)));
    const auto is_plain = [](char c) { return c >= ' ' && c <= '~' && c != '\'' && c != '\\'; };
    if (!std::ranges::all_of(name, is_plain)) return Fail("{}.type: not a type: {}", where, name);
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", Upper(std::move(name)));
  }
  return fmt::format("[{}]", names);
}

Result<std::string> RequiredList(const Json& required, std::string_view where) {
  if (!required.is_array()) {
    return Fail("{}.required: expected a list, found {}", where, required.dump());
  }
  std::string text;
  for (const Json& name : required) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string plain,
                            TextOf(name, fmt::format("{}.required", where)));
    if (!text.empty()) text += ',';
    text += Quoted(plain);
  }
  return fmt::format("required:[{}]", text);
}

// Joins the parts of one brace.
class Parts {
 public:
  void Add(std::string_view part) {
    if (!text_.empty()) text_ += ',';
    text_ += part;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

Result<std::string> FormatProperties(const Json& properties, const std::string& where);

// The schema of what an array holds.
Result<std::string> FormatItems(const Json& items, const std::string& where) {
  Parts parts;
  for (const auto& [key, value] : SortedItems(items)) {
    if (value->is_null()) continue;
    if (key == "properties") {
      std::string inner;
      if (value->is_object()) {
        NIBBLE_ASSIGN_OR_RETURN(inner, FormatProperties(*value, where));
      }
      parts.Add(fmt::format("properties:{{{}}}", inner));
    } else if (key == "required") {
      NIBBLE_ASSIGN_OR_RETURN(const std::string required, RequiredList(*value, where));
      parts.Add(required);
    } else if (key == "type") {
      Json type = *value;
      if (!type.is_array()) type = Json::array({type});
      for (Json& entry : type) {
        NIBBLE_ASSIGN_OR_RETURN(std::string name, TextOf(entry, where + ".type"));
        entry = Upper(std::move(name));
      }
      parts.Add(fmt::format("type:{}", FormatValue(value->is_array() ? type : type[0], true)));
    } else {
      parts.Add(fmt::format("{}:{}", key, FormatValue(*value, true)));
    }
  }
  return parts.text();
}

Result<std::string> FormatProperty(const Json& schema, const std::string& where) {
  Parts parts;
  if (const Json* description = Member(schema, "description"); IsTruthy(description)) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string text, TextOf(*description, where + ".description"));
    parts.Add(fmt::format("description:{}", Quoted(text)));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string type, TypeName(Member(schema, "type"), where));
  if (const Json* choices = Member(schema, "enum"); type == "STRING" && IsTruthy(choices)) {
    parts.Add(fmt::format("enum:{}", FormatValue(*choices, true)));
  }
  if (const Json* items = Member(schema, "items");
      type == "ARRAY" && IsTruthy(items) && items->is_object()) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string inner, FormatItems(*items, where + ".items"));
    parts.Add(fmt::format("items:{{{}}}", inner));
  }
  if (IsTruthy(Member(schema, "nullable"))) parts.Add("nullable:true");
  if (type == "OBJECT") {
    // Without properties, the template takes the schema's other keys for them.
    const Json* properties = Member(schema, "properties");
    if (properties == nullptr || !properties->is_object()) properties = &schema;
    NIBBLE_ASSIGN_OR_RETURN(const std::string inner, FormatProperties(*properties, where));
    parts.Add(fmt::format("properties:{{{}}}", inner));
    if (const Json* required = Member(schema, "required"); IsTruthy(required)) {
      NIBBLE_ASSIGN_OR_RETURN(const std::string list, RequiredList(*required, where));
      parts.Add(list);
    }
  }
  parts.Add(fmt::format("type:{}", Quoted(type)));
  return parts.text();
}

Result<std::string> FormatProperties(const Json& properties, const std::string& where) {
  // The template leaves these out even where they are names of parameters.
  static constexpr std::array<std::string_view, 5> kSkipped = {"description", "type", "properties",
                                                               "required", "nullable"};
  Parts parts;
  for (const auto& [key, schema] : SortedItems(properties)) {
    if (std::ranges::find(kSkipped, key) != kSkipped.end()) continue;
    NIBBLE_ASSIGN_OR_RETURN(const std::string property,
                            FormatProperty(*schema, fmt::format("{}.{}", where, key)));
    parts.Add(fmt::format("{}:{{{}}}", key, property));
  }
  return parts.text();
}

// The closing brace comes with the type, and only then: so does the template.
Result<std::string> FormatParameters(const Json& parameters, const std::string& where) {
  if (!parameters.is_object()) return Fail("{}: expected an object", where);
  std::string text = ",parameters:{";
  if (const Json* properties = Member(parameters, "properties"); IsTruthy(properties)) {
    if (!properties->is_object()) return Fail("{}.properties: expected an object", where);
    NIBBLE_ASSIGN_OR_RETURN(const std::string inner,
                            FormatProperties(*properties, where + ".properties"));
    text += fmt::format("properties:{{{}}},", inner);
  }
  if (const Json* required = Member(parameters, "required"); IsTruthy(required)) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string list, RequiredList(*required, where));
    text += list + ',';
  }
  if (const Json* type = Member(parameters, "type"); IsTruthy(type)) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string name, TypeName(type, where));
    text += fmt::format("type:{}}}", Quoted(name));
  }
  return text;
}

Result<std::string> FormatResponse(const Json& response, const std::string& where) {
  if (!response.is_object()) return Fail("{}: expected an object", where);
  std::string text = ",response:{";
  if (const Json* description = Member(response, "description"); IsTruthy(description)) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string plain, TextOf(*description, where + ".description"));
    text += fmt::format("description:{},", Quoted(plain));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string type, TypeName(Member(response, "type"), where));
  if (type == "OBJECT") text += fmt::format("type:{}}}", Quoted(type));
  return text;
}

}  // namespace

Result<std::string> FormatDeclaration(const Json& tool, std::string_view where) {
  if (const Json* type = Member(tool, "type"); type != nullptr && *type != "function") {
    return Fail("{}.type: {} is not supported, expected \"function\"", where, type->dump());
  }
  const Json* function = Member(tool, "function");
  const Json* name = function == nullptr ? nullptr : Member(*function, "name");
  if (name == nullptr || !name->is_string()) {
    return Fail("{}: expected {{\"function\": {{\"name\": ...}}}}", where);
  }
  const std::string place = fmt::format("{}.function", where);
  std::string description;
  if (const Json* given = Member(*function, "description"); given != nullptr) {
    const Json null_as_python_prints_it = "None";
    NIBBLE_ASSIGN_OR_RETURN(
        description,
        TextOf(given->is_null() ? null_as_python_prints_it : *given, place + ".description"));
  }
  std::string text = fmt::format("declaration:{}{{description:{}",
                                 name->get_ref<const std::string&>(), Quoted(description));
  if (const Json* parameters = Member(*function, "parameters"); IsTruthy(parameters)) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string part,
                            FormatParameters(*parameters, place + ".parameters"));
    text += part;
  }
  if (const Json* response = Member(*function, "response"); response != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string part, FormatResponse(*response, place + ".response"));
    text += part;
  }
  return text + '}';
}

}  // namespace nibble::text
