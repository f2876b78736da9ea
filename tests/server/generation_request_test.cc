#include "server/generation_request.h"

#include <gtest/gtest.h>

#include <random>

#include "base/json.h"
#include "scripted_model.h"

namespace nibble::server {
namespace {

Json Hello() { return {{"messages", Json::array({{{"role", "user"}, {"content", "Hello"}}})}}; }

Json With(Json body, std::string_view name, Json value) {
  body[name] = std::move(value);
  return body;
}

GenerationRequest Chat(const Json& body) {
  auto request = ParseChatRequest(body.dump(), SilentModel());
  EXPECT_TRUE(request.has_value()) << (request.has_value() ? "" : request.error().message);
  return request.has_value() ? *std::move(request) : GenerationRequest();
}

ApiError ChatError(const Json& body) {
  const auto request = ParseChatRequest(body.dump(), SilentModel());
  EXPECT_FALSE(request.has_value()) << body.dump();
  return request.has_value() ? ApiError() : request.error();
}

const Json kTools = Json::parse(R"([{"type":"function","function":{"name":"f","description":"d",
    "parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}])");

// Case H1 of the field reports.
TEST(GenerationRequest, BothNamesOfTheTokenLimitWork) {
  EXPECT_EQ(Chat(With(Hello(), "max_completion_tokens", 3)).engine.max_tokens, 3);
  EXPECT_EQ(Chat(With(Hello(), "max_tokens", 4)).engine.max_tokens, 4);
  EXPECT_EQ(
      Chat(With(With(Hello(), "max_tokens", 4), "max_completion_tokens", 4)).engine.max_tokens, 4);
  EXPECT_EQ(ChatError(With(With(Hello(), "max_tokens", 4), "max_completion_tokens", 5)).param,
            "max_completion_tokens");
  for (const Json& bad : {Json(0), Json(-1), Json("x"), Json(1.5), Json(true)}) {
    const ApiError error = ChatError(With(Hello(), "max_completion_tokens", bad));
    EXPECT_EQ(error.status, 400);
    EXPECT_EQ(error.param, "max_completion_tokens");
  }
}

TEST(GenerationRequest, FieldsOutOfRangeAreNamed) {
  const std::vector<std::pair<std::string, Json>> bad = {{"temperature", 2.1},
                                                         {"temperature", "hot"},
                                                         {"temperature", 1e300},
                                                         {"top_p", -0.1},
                                                         {"n", 0},
                                                         {"n", 1000},
                                                         {"top_logprobs", 21},
                                                         {"presence_penalty", 3},
                                                         {"frequency_penalty", -3},
                                                         {"stop", Json::array({1})},
                                                         {"stop", ""},
                                                         {"stream", 1},
                                                         {"seed", "x"},
                                                         {"logit_bias", {{"x", 1}}},
                                                         {"logit_bias", {{"99999", 1}}},
                                                         {"logit_bias", {{"5", 101}}},
                                                         {"tool_choice", "auto2"},
                                                         {"messages", "hi"},
                                                         {"reasoning_effort", "max"},
                                                         {"stop_token_ids", {99999}},
                                                         {"min_tokens", -1}};
  for (const auto& [name, value] : bad) {
    const ApiError error = ChatError(With(Hello(), name, value));
    EXPECT_EQ(error.status, 400) << name;
    EXPECT_TRUE(error.param.starts_with(name)) << name << ": " << error.message;
  }
  EXPECT_EQ(ChatError(With(Hello(), "model", "gpt-4")).status, 404);
  EXPECT_EQ(Chat(With(Hello(), "model", "alias")).model, "alias");
  EXPECT_EQ(Chat(With(Hello(), "temperature", nullptr)).engine.sampling.temperature,
            SilentModel().sampling.temperature);
}

// The table of docs/SERVING.md: case H7 of the field reports.
TEST(GenerationRequest, FieldsAreUsedIgnoredAloudOrRefused) {
  const GenerationRequest biased = Chat(With(Hello(), "logit_bias", {{"5", -100}}));
  ASSERT_EQ(biased.engine.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(biased.engine.sampling.logit_bias[0].bias, -100);
  EXPECT_TRUE(biased.ignored.empty());
  EXPECT_EQ(Chat(With(Hello(), "service_tier", "auto")).ignored,
            std::vector<std::string>{"service_tier"});
  EXPECT_EQ(ChatError(With(Hello(), "no_such_thing", 1)).code, "unknown_parameter");
  EXPECT_EQ(ChatError(With(Hello(), "functions", Json::array())).code, "unsupported_parameter");
  EXPECT_TRUE(Chat(With(With(Hello(), "tools", kTools), "parallel_tool_calls", false)).single_call);
}

// Case H8 of the field reports.
TEST(GenerationRequest, ValidShapesOfMessages) {
  const Json call =
      Json::parse(R"([{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}])");
  const Json user = {{"role", "user"}, {"content", "x"}};
  const std::vector<Json> histories = {
      Json::array({user}),
      {{{"role", "developer"}, {"content", "be brief"}}, user},
      {{{"role", "system"}, {"content", ""}}, user},
      {{{"role", "user"}, {"content", ""}}},
      {{{"role", "user"},
        {"content",
         Json::array({{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}})}}},
      {user,
       {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", call}},
       {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "42"}}},
      {user,
       {{"role", "assistant"}, {"tool_calls", call}},
       {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", ""}},
       user},
      {user, {{"role", "assistant"}, {"content", ""}}, user},
  };
  for (const Json& messages : histories) {
    EXPECT_FALSE(Chat({{"messages", messages}}).prompts.empty()) << messages.dump();
  }
  const Json image =
      Json::parse(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])");
  const ApiError error = ChatError({{"messages", image}});
  EXPECT_EQ(error.param, "messages[0].content[0]");
  EXPECT_NE(error.message.find("image_url"), std::string::npos);
}

// Case I4 of the field reports.
TEST(GenerationRequest, PromptLongerThanTheContextIsRefusedWithBothNumbers) {
  std::vector<int> ids(SilentModel().context_tokens + 1, 300);
  Json body = {{"prompt", ids}};
  const auto refused = ParseCompletionRequest(body.dump(), SilentModel());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, "context_length_exceeded");
  EXPECT_NE(refused.error().message.find("512"), std::string::npos);
  EXPECT_NE(refused.error().message.find("513"), std::string::npos);
  ids.resize(SilentModel().context_tokens - 1);
  body["prompt"] = ids;
  EXPECT_TRUE(ParseCompletionRequest(body.dump(), SilentModel()).has_value());
}

TEST(GenerationRequest, PromptsOfCompletions) {
  const auto prompts = [](const char* body) {
    return ParseCompletionRequest(body, SilentModel()).value().prompts;
  };
  EXPECT_EQ(prompts(R"({"prompt":"a"})")[0].ids, (std::vector<int32_t>{2, Ids("a")[0]}));
  EXPECT_EQ(prompts(R"({"prompt":"<bos>a"})")[0].ids, (std::vector<int32_t>{2, Ids("a")[0]}));
  EXPECT_EQ(prompts(R"({"prompt":["a","b"]})").size(), 2u);
  EXPECT_EQ(prompts(R"({"prompt":[2,5]})")[0].ids, (std::vector<int32_t>{2, 5}));
  EXPECT_EQ(prompts(R"({"prompt":[[2],[5]]})").size(), 2u);
  for (const char* body : {R"({"prompt":[]})", R"({"prompt":[[]]})", R"({"prompt":[1,"a"]})",
                           R"({"prompt":[99999]})", R"({"prompt":{}})", R"({})",
                           R"({"prompt":"a","suffix":"b"})", R"({"prompt":"a","best_of":2})"}) {
    EXPECT_FALSE(ParseCompletionRequest(body, SilentModel()).has_value()) << body;
  }
}

TEST(GenerationRequest, ToolChoice) {
  const Json offer = With(Hello(), "tools", kTools);
  EXPECT_EQ(Chat(offer).tool_choice, ToolChoice::kAuto);
  EXPECT_NE(Chat(offer).prompts[0].text.find("declaration:f"), std::string::npos);
  const GenerationRequest none = Chat(With(offer, "tool_choice", "none"));
  EXPECT_EQ(none.format, text::AnswerFormat::kChat);
  EXPECT_EQ(none.prompts[0].text.find("declaration:f"), std::string::npos);
  EXPECT_EQ(Chat(offer).new_constraint, nullptr);
  EXPECT_NE(Chat(With(offer, "tool_choice", "required")).new_constraint, nullptr);
  const Json named = {{"type", "function"}, {"function", {{"name", "f"}}}};
  EXPECT_EQ(Chat(With(offer, "tool_choice", named)).tool_choice, ToolChoice::kNamed);
  EXPECT_TRUE(Chat(With(offer, "tool_choice", named)).single_call);
  const Json unknown = {{"type", "function"}, {"function", {{"name", "g"}}}};
  EXPECT_EQ(ChatError(With(offer, "tool_choice", unknown)).param, "tool_choice");
  EXPECT_EQ(ChatError(With(Hello(), "tool_choice", "required")).param, "tool_choice");
}

TEST(GenerationRequest, Thinking) {
  const auto thinks = [](const Json& body) {
    return Chat(body).prompts[0].text.find("<|think|>") != std::string::npos;
  };
  EXPECT_FALSE(thinks(Hello()));
  EXPECT_TRUE(thinks(With(Hello(), "reasoning_effort", "high")));
  EXPECT_FALSE(thinks(With(Hello(), "reasoning_effort", "none")));
  EXPECT_TRUE(thinks(With(Hello(), "chat_template_kwargs", {{"enable_thinking", true}})));
  EXPECT_EQ(ChatError(With(Hello(), "chat_template_kwargs", {{"x", 1}})).code, "unknown_parameter");
}

// Cases H6, H9 and I5 of the field reports.
TEST(GenerationRequest, HostileBodiesAreRefused) {
  for (const std::string& body :
       {std::string(), std::string("{:"), std::string("null"), std::string("[]"), std::string("1"),
        "{\"messages\":" + std::string(3000, '[') + std::string(3000, ']') + "}",
        "{\"tools\":" + std::string(100'000, '['), std::string("{\"\xff\xfe\":1}"),
        std::string("{\"n\":1,\"n\":2}"), std::string("{\"temperature\":1e400}")}) {
    const auto refused = ParseChatRequest(body, SilentModel());
    ASSERT_FALSE(refused.has_value()) << body.substr(0, 50);
    EXPECT_EQ(refused.error().status, 400);
    EXPECT_TRUE(Json::accept(ErrorBody(refused.error())));
  }
}

// Case I5 of the field reports: types swapped, bytes changed, text cut: an answer or a 400, always.
TEST(GenerationRequest, MutatedBodiesAreAnsweredOrRefused) {
  Json body = With(With(Hello(), "tools", kTools), "logit_bias", {{"5", 1}});
  body["stop"] = {"a", "b"};
  body["stream_options"] = {{"include_usage", true}};
  body["stream"] = true;
  const std::string text = body.dump();
  const std::vector<std::string> pieces = {"null", "-1", "1e308", "\"\\ud800\"", "\xc4\xe3", "NaN",
                                           "[]",   "{}", "\"\"",  "true",        ":",        "\\"};
  std::mt19937 random(7);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  for (int i = 0; i < 10'000; ++i) {
    std::string mutated = text;
    for (size_t k = 0; k <= below(3); ++k) {
      const size_t at = below(mutated.size());
      mutated.replace(at, below(6), pieces[below(pieces.size())]);
    }
    const auto request = ParseChatRequest(mutated, SilentModel());
    if (!request.has_value()) {
      ASSERT_LT(request.error().status, 500) << mutated;
    }
  }
}

TEST(GenerationRequest, TokenizeAndDetokenize) {
  EXPECT_EQ(ParseTokenize(R"({"prompt":"a"})", SilentModel()).value().ids.size(), 2u);
  EXPECT_EQ(ParseTokenize(R"({"prompt":"a","add_special_tokens":false})", SilentModel())->ids,
            Ids("a"));
  EXPECT_EQ(ParseTokenize(Hello().dump(), SilentModel())->ids, Chat(Hello()).prompts[0].ids);
  EXPECT_FALSE(ParseTokenize("{}", SilentModel()).has_value());
  EXPECT_FALSE(ParseTokenize(R"({"prompt":"a","tools":[]})", SilentModel()).has_value());
  EXPECT_EQ(ParseDetokenize(R"({"tokens":[5,6]})", SilentModel()).value(),
            (std::vector<int32_t>{5, 6}));
  EXPECT_FALSE(ParseDetokenize(R"({"tokens":[-1]})", SilentModel()).has_value());
}

}  // namespace
}  // namespace nibble::server
