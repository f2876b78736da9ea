#include "server/structured_output.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "scripted_model.h"
#include "server/generation_request.h"

namespace nibble::server {
namespace {

constexpr std::string_view kMessages = R"("messages":[{"role":"user","content":"Hello"}])";
constexpr std::string_view kOneTool = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
constexpr std::string_view kNumberA =
    R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";

ApiResult<GenerationRequest> Parse(std::string_view more) {
  return ParseChatRequest(fmt::format("{{{}{}}}", kMessages, more), SilentModel());
}

std::string SchemaFormat(std::string_view schema) {
  return fmt::format(
      R"(,"response_format":{{"type":"json_schema","json_schema":{{"name":"n","strict":true,"schema":{}}}}})",
      schema);
}

// Whether an answer of these tokens may be given, as a whole.
bool Allows(const ApiResult<GenerationRequest>& request, std::string_view text) {
  EXPECT_TRUE(request.has_value()) << request.error().message;
  const std::shared_ptr<TokenConstraint> constraint = request->new_constraint();
  std::vector<uint64_t> mask(static_cast<size_t>(SilentModel().n_token_ids + 63) / 64);
  for (const int32_t id : Ids(text)) {
    constraint->FillMask(mask);
    const auto bit = static_cast<size_t>(id);
    if ((mask[bit / 64] >> (bit % 64) & 1) == 0) return false;
    constraint->Accept(id);
  }
  return constraint->is_complete();
}

TEST(StructuredOutput, EveryFieldThatAsksForIt) {
  EXPECT_EQ(Parse("")->new_constraint, nullptr);
  EXPECT_EQ(Parse(R"(,"response_format":{"type":"text"})")->new_constraint, nullptr);
  const std::string quoted = Json(std::string(kNumberA)).dump();
  for (const std::string& more :
       {SchemaFormat(kNumberA), fmt::format(R"(,"guided_json":{})", kNumberA),
        fmt::format(R"(,"guided_json":{})", quoted),
        fmt::format(R"(,"structured_outputs":{{"json":{}}})", kNumberA)}) {
    EXPECT_TRUE(Allows(Parse(more), R"({"a": 12})")) << more;
    EXPECT_FALSE(Allows(Parse(more), R"({"a": "x"})")) << more;
    EXPECT_FALSE(Allows(Parse(more), "12")) << more;
  }
  for (const char* more : {R"(,"response_format":{"type":"json_object"})",
                           R"(,"structured_outputs":{"json_object":true})"}) {
    EXPECT_TRUE(Allows(Parse(more), R"({"a": "x"})")) << more;
    EXPECT_FALSE(Allows(Parse(more), "[]")) << more;
  }
  for (const char* more :
       {R"(,"guided_regex":"[ab]+")", R"(,"structured_outputs":{"regex":"[ab]+"})"}) {
    EXPECT_TRUE(Allows(Parse(more), "abba")) << more;
    EXPECT_FALSE(Allows(Parse(more), "abc")) << more;
  }
  for (const char* more :
       {R"(,"guided_choice":["yes","no"])", R"(,"structured_outputs":{"choice":["yes","no"]})"}) {
    EXPECT_TRUE(Allows(Parse(more), "no")) << more;
    EXPECT_FALSE(Allows(Parse(more), "n")) << more;
  }
  const auto completion =
      ParseCompletionRequest(R"({"prompt":"a","guided_regex":"x"})", SilentModel());
  EXPECT_TRUE(Allows(completion, "x"));
}

TEST(StructuredOutput, PropertiesComeInTheOrderOfTheText) {
  const auto request = Parse(SchemaFormat(
      R"({"type":"object","properties":{"b":{"type":"null"},"a":{"type":"null"}},"required":["a","b"]})"));
  EXPECT_TRUE(Allows(request, R"({"b": null, "a": null})"));
  EXPECT_FALSE(Allows(request, R"({"a": null, "b": null})"));
}

// Cases H5 and H6 of the field reports: what cannot be kept or paid for is refused by name.
TEST(StructuredOutput, RefusesWithTheFieldsName) {
  const std::string schema_field = "response_format.json_schema.schema";
  const auto nested = [](int n) { return Json(std::string(n, '[') + std::string(n, ']')).dump(); };
  const std::vector<std::tuple<std::string, std::string, std::string>> cases = {
      {SchemaFormat(R"({"type":"array","uniqueItems":true})"), schema_field, "uniqueItems"},
      {SchemaFormat(R"({"type":"number","multipleOf":3})"), schema_field, "multipleOf"},
      {SchemaFormat(R"({"type":"string","maxLength":1000000000})"), schema_field, "states"},
      {SchemaFormat("7"), schema_field, "expected an object"},
      {R"(,"response_format":{"type":"json_schema"})", schema_field, "expected a schema"},
      {R"(,"response_format":{"type":"yaml"})", "response_format.type", "json_schema"},
      {R"(,"response_format":{"type":"text","x":1})", "response_format.x", "x"},
      {R"(,"response_format":"json")", "response_format", "object"},
      {R"(,"guided_regex":7)", "guided_regex", "an expression"},
      {fmt::format(R"(,"guided_regex":"{}")", std::string(50'000, '(')), "guided_regex", "deep"},
      {R"(,"guided_regex":"^+a")", "guided_regex", "at character"},
      {fmt::format(R"(,"guided_json":{})", nested(3000)), "guided_json", "schema"},
      {R"(,"guided_choice":[])", "guided_choice", "at least one"},
      {R"(,"guided_choice":[1])", "guided_choice", "strings"},
      {R"(,"guided_grammar":"root ::= x")", "guided_grammar", "guided_grammar"},
      {R"(,"structured_outputs":{"grammar":"x"})", "structured_outputs.grammar", "grammar"},
      {R"(,"guided_regex":"a","guided_choice":["a"])", "guided_choice", "guided_regex"},
      {fmt::format(R"(,"guided_regex":"a"{},"tool_choice":"required")", kOneTool), "guided_regex",
       "tool_choice"}};
  for (const auto& [more, param, part] : cases) {
    const auto request = Parse(more);
    ASSERT_FALSE(request.has_value()) << more;
    EXPECT_EQ(request.error().status, 400);
    EXPECT_EQ(request.error().param, param) << request.error().message;
    EXPECT_NE(request.error().message.find(part), std::string::npos) << request.error().message;
  }
}

// The content keeps its shape beside what is no content.
TEST(StructuredOutput, ThoughtsAndCalls) {
  const std::string shape = R"(,"guided_choice":["yes"])";
  const auto plain = Parse(shape);
  const auto thinking = Parse(shape + R"(,"reasoning_effort":"high")");
  const auto tools = Parse(shape + std::string(kOneTool));
  EXPECT_FALSE(Allows(plain, "<|channel>thought\nhm<channel|>yes"));
  EXPECT_TRUE(Allows(thinking, "<|channel>thought\nhm<channel|>yes"));
  EXPECT_TRUE(Allows(thinking, "yes"));
  EXPECT_FALSE(Allows(thinking, "<|channel>thought\nhm"));
  EXPECT_FALSE(Allows(thinking, "<|channel>thought\nhm<channel|>no"));
  EXPECT_FALSE(Allows(plain, "<|tool_call>call:f{}<tool_call|>"));
  EXPECT_TRUE(Allows(tools, "<|tool_call>call:f{}<tool_call|>"));
  EXPECT_TRUE(Allows(tools, "<|tool_call>call:f{}<tool_call|><|tool_call>call:f{}<tool_call|>"));
  EXPECT_TRUE(Allows(tools, "yes"));
  EXPECT_FALSE(Allows(tools, "<|tool_call>call:f{}"));
  EXPECT_FALSE(Allows(tools, "<|tool_call>call:f{}<tool_call|>yes"));
  EXPECT_FALSE(Allows(tools, "yes<|tool_call>call:f{}<tool_call|>"));
  EXPECT_TRUE(Allows(Parse(shape + std::string(kOneTool) + R"(,"tool_choice":"none")"), "yes"));
}

TEST(GrammarCache, KeepsTheGrammarsUsedLast) {
  GrammarCache& cache = *SilentModel().grammars;
  const auto get = [&](const std::string& text) {
    return cache.Get({.kind = AnswerShape::Kind::kRegex, .text = text}).value();
  };
  const auto first = get("a0");
  EXPECT_EQ(get("a0"), first);
  for (int i = 1; i < 40; ++i) {
    get(fmt::format("a{}", i));
    EXPECT_EQ(get("a0"), first);
  }
  EXPECT_EQ(cache.size(), 16u);
  const auto again = get("a1");
  EXPECT_EQ(get("a1"), again);
  EXPECT_FALSE(cache.Get({.kind = AnswerShape::Kind::kRegex, .text = "("}).has_value());
  EXPECT_EQ(cache.size(), 16u);
}

}  // namespace
}  // namespace nibble::server
