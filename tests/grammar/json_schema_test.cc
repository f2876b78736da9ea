// Documents of a corpus (whose judgements test_grammar.py checks with jsonschema), refusals, and
// schemas that mean harm.
#include "grammar/json_schema.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "grammar/machine.h"

namespace nibble::grammar {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool Accepts(const Program& program, std::string_view text) {
  Machine machine(program);
  StateId state = machine.Enter(program.rules[0], kEnd);
  for (const char c : text) state = machine.Next(state, static_cast<uint8_t>(c));
  return machine.Contains(state, kEnd);
}

TEST(JsonSchema, AcceptsWhatIsValid) {
  std::ifstream file(NIBBLE_SOURCE_DIR "/tests/grammar/corpus.json");
  const OrderedJson corpus = OrderedJson::parse(file);
  EXPECT_GT(corpus.size(), 30u);
  for (const OrderedJson& entry : corpus) {
    const auto program = CompileJsonSchema(entry["schema"].dump());
    ASSERT_TRUE(program.has_value()) << entry["schema"] << " " << program.error().message;
    for (const std::string text : entry["valid"]) {
      EXPECT_TRUE(Accepts(*program, text)) << entry["schema"] << " " << text;
    }
    for (const std::string text : entry["invalid"]) {
      EXPECT_FALSE(Accepts(*program, text)) << entry["schema"] << " " << text;
    }
  }
}

void ExpectRefused(std::string_view schema, std::string_view part) {
  const auto program = CompileJsonSchema(schema);
  ASSERT_FALSE(program.has_value()) << schema;
  const std::string& message = program.error().message;
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_LT(message.size(), 300u);
}

TEST(JsonSchema, RefusesByNameAndPlace) {
  ExpectRefused("{", "schema");
  ExpectRefused("[]", "expected an object, found array");
  ExpectRefused("false", "accepts nothing");
  ExpectRefused(R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}})",
                R"("#/properties/a": "uniqueItems" is not supported)");
  ExpectRefused(R"({"type":"array","items":{"not":{}}})", R"("#/items": "not")");
  ExpectRefused(R"({"type":"strin"})", "strin");
  ExpectRefused(R"({"type":"string","pattern":"(?=b)c"})", "look-around");
  ExpectRefused(R"({"type":"string","pattern":"(a"})", "pattern: at character 3");
  ExpectRefused(R"({"type":"string","format":"regex"})", "format \"regex\"");
  ExpectRefused(R"({"type":"string","pattern":"a","maxLength":3})", "\"pattern\" beside");
  ExpectRefused(R"({"type":"string","minLength":4,"maxLength":3})", "below minLength");
  ExpectRefused(R"({"type":"string","minLength":-1})", "minLength");
  ExpectRefused(R"({"type":"number","minimum":0.5})", "minimum 0.5");
  ExpectRefused(R"({"type":"integer","minimum":5,"maximum":4})", "no number");
  ExpectRefused(R"({"type":"array","items":false,"minItems":1})", "minItems");
  ExpectRefused(R"({"enum":[]})", "enum");
  ExpectRefused(R"({"type":"string","enum":[1]})", "none of its values");
  ExpectRefused(R"({"$ref":"#/$defs/none"})", "#/$defs/none");
  ExpectRefused(R"({"$ref":"https://example.com/x.json"})", "example.com");
  ExpectRefused(R"({"anyOf":[{"type":"string"}],"minLength":3})", "\"minLength\" beside \"anyOf\"");
  ExpectRefused(R"({"allOf":[{},{}]})", "allOf");
  ExpectRefused(R"({"required":["a"],"properties":{},"additionalProperties":false})",
                "no property");
  ExpectRefused(R"({"type":"object","properties":{"a":false}})", "#/properties/a");
}

TEST(JsonSchema, RefusesWhatLeadsNowhere) {
  ExpectRefused(R"({"$ref":"#"})", "leads to itself");
  ExpectRefused(
      R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/a"}]}},
                    "$ref":"#/$defs/a"})",
      "leads to itself");
}

TEST(JsonSchema, BoundsWhatASchemaCosts) {
  ExpectRefused(R"({"type":"string","maxLength":1000000000})", "states");
  ExpectRefused(R"({"type":"array","minItems":100000000000})", "states");
  ExpectRefused(R"({"type":"string","pattern":"((a{1000}){1000}){1000}"})", "states");
  ExpectRefused(R"({"type":"string","pattern":")" + std::string(5000, '(') + "\"}", "too deep");
  std::string deep;
  for (int i = 0; i < 2000; ++i) deep += R"({"type":"array","items":)";
  ExpectRefused(deep + "{}" + std::string(2000, '}'), "schema");
  // Each level refers to the one below twice: rules, and no copies.
  std::string doubling = R"({"$defs":{"n0":{"type":"null"})";
  for (int i = 1; i < 60; ++i) {
    doubling += fmt::format(
        R"(,"n{0}":{{"type":"array","prefixItems":[{{"$ref":"#/$defs/n{1}"}},{{"$ref":"#/$defs/n{1}"}}]}})",
        i, i - 1);
  }
  EXPECT_TRUE(CompileJsonSchema(doubling + R"(},"$ref":"#/$defs/n59"})").has_value());
  const auto enumeration = [](int n) {
    std::string schema = R"({"enum":[)";
    for (int i = 0; i < n; ++i) schema += fmt::format("\"value number {} of many\",", i * 7919);
    schema.back() = ']';
    return schema + "}";
  };
  const auto program = CompileJsonSchema(enumeration(10000));
  ASSERT_TRUE(program.has_value()) << program.error().message;
  EXPECT_TRUE(Accepts(*program, "\"value number 7919 of many\""));
  EXPECT_FALSE(Accepts(*program, "\"value number 7918 of many\""));
  ExpectRefused(enumeration(100000), "states");
}

}  // namespace
}  // namespace nibble::grammar
