#include "server/structured_output.h"

#include <gtest/gtest.h>

#include <barrier>
#include <thread>

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

constexpr std::string_view kTwoTools =
    R"(,"tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object",)"
    R"("properties":{"y":{"type":"integer"},"X":{"type":"integer"}},"required":["y","X"]}}},)"
    R"({"type":"function","function":{"name":"now"}}])";

std::string Call(std::string_view text) {
  return fmt::format("<|tool_call>call:{}<tool_call|>", text);
}

// The answer is one call or more, of the tools that may be called, with the arguments they have.
TEST(ToolChoice, RequiredAndNamedHoldTheAnswerToACall) {
  const std::string tools(kTwoTools);
  const auto required = Parse(tools + R"(,"tool_choice":"required")");
  EXPECT_TRUE(Allows(required, Call("add{X:1,y:-2}")));
  EXPECT_TRUE(Allows(required, Call("now{}")));
  EXPECT_TRUE(Allows(required, Call("now{}") + Call("add{X:1,y:2}")));
  for (const std::string& other :
       {std::string("Hello"), Call("add{y:1,X:2}"), Call("add{X:1}"), Call("add{X:1.5,y:2}"),
        Call("add{X:1, y:2}"), Call("now{a:1}"), Call("sub{}"), Call("now{}") + "Hello",
        std::string("<|tool_call>call:now{}"), "<|channel>thought\nhm<channel|>" + Call("now{}")}) {
    EXPECT_FALSE(Allows(required, other)) << other;
  }
  const auto single = Parse(tools + R"(,"tool_choice":"required","parallel_tool_calls":false)");
  EXPECT_TRUE(Allows(single, Call("now{}")));
  EXPECT_FALSE(Allows(single, Call("now{}") + Call("now{}")));
  const auto named =
      Parse(tools + R"(,"tool_choice":{"type":"function","function":{"name":"add"}})");
  EXPECT_TRUE(Allows(named, Call("add{X:1,y:-2}")));
  EXPECT_FALSE(Allows(named, Call("now{}")));
  EXPECT_FALSE(Allows(named, Call("add{X:1,y:2}") + Call("add{X:1,y:2}")));
  const auto thinking = Parse(tools + R"(,"tool_choice":"required","reasoning_effort":"high")");
  EXPECT_TRUE(Allows(thinking, "<|channel>thought\nhm<channel|>" + Call("now{}")));
  EXPECT_FALSE(Allows(thinking, "<|channel>thought\nhm<channel|>Hello"));
}

// Where the model has the choice, a strict tool's arguments are held to its schema; others are not.
TEST(ToolChoice, AutoHoldsCallsOfStrictToolsToTheirSchema) {
  EXPECT_EQ(Parse(kTwoTools)->new_constraint, nullptr);
  std::string tools(kTwoTools);
  tools.insert(tools.find(R"("name":"add")"), R"("strict":true,)");
  const auto request = Parse(tools);
  for (const std::string& text :
       {std::string("Hello"), Call("add{X:1,y:-2}"), Call(R"(now{a:<|"|>b<|"|>})"),
        "So: " + Call("now{}") + Call("add{X:1,y:2}") + " done"}) {
    EXPECT_TRUE(Allows(request, text)) << text;
  }
  for (const std::string& text : {Call("add{X:1}"), Call("sub{}"), "So: " + Call("add{}"),
                                  std::string("<|tool_call>call:now{}")}) {
    EXPECT_FALSE(Allows(request, text)) << text;
  }
  const auto shaped = Parse(tools + R"(,"guided_choice":["yes"])");
  EXPECT_TRUE(Allows(shaped, "yes"));
  EXPECT_TRUE(Allows(shaped, Call("add{X:1,y:2}")));
  EXPECT_FALSE(Allows(shaped, Call("add{X:1}")));
}

TEST(ToolChoice, RefusesSchemasByName) {
  const auto with = [](std::string_view function) {
    return Parse(fmt::format(
        R"(,"tools":[{{"type":"function","function":{}}}],"tool_choice":"required")", function));
  };
  for (const auto& [function, part] : std::vector<std::pair<std::string, std::string>>{
           {R"({"name":"f","parameters":{"type":"object","properties":{"a":{"multipleOf":3}}}})",
            "tool \"f\": schema \"#/properties/a\": \"multipleOf\""},
           {R"({"name":"f","parameters":{"type":"array"}})", "type object"},
           {R"({"name":"f{"})", "not a name"},
           {R"({"name":"f","strict":1})", "strict"}}) {
    const auto request = with(function);
    ASSERT_FALSE(request.has_value()) << function;
    EXPECT_EQ(request.error().param, "tools");
    EXPECT_NE(request.error().message.find(part), std::string::npos) << request.error().message;
  }
}

// Requests for the same grammar that come together wait for one to be made.
TEST(GrammarCache, MakesAGrammarOnce) {
  GrammarCache& cache = *SilentModel().grammars;
  constexpr int kThreads = 8;
  for (int round = 0; round < 4; ++round) {
    const AnswerShape shape = {.kind = AnswerShape::Kind::kRegex,
                               .text = fmt::format("(together{}|a{{1,300}})*", round)};
    std::vector<GrammarCache::Made> made(kThreads);
    std::barrier start(kThreads);
    {
      std::vector<std::jthread> threads;
      for (GrammarCache::Made& own : made) {
        threads.emplace_back([&] {
          start.arrive_and_wait();
          own = cache.Get(shape);
        });
      }
    }
    for (const GrammarCache::Made& own : made) EXPECT_EQ(own.value(), made[0].value());
    EXPECT_LE(cache.size(), 16u);
    EXPECT_FALSE(cache.Get({.kind = AnswerShape::Kind::kRegex, .text = "("}).has_value());
  }
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
