#include "server/service.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <regex>

#include "base/json.h"
#include "scripted_model.h"
#include "server/default_sampling.h"

namespace nibble::server {
namespace {

constexpr const char* kHello = R"({"messages":[{"role":"user","content":"Hello"}])";

HttpRequest Get(std::string path) {
  return {.method = "GET", .path = std::move(path), .client = "c"};
}

HttpRequest Post(std::string path, std::string body) {
  return {.method = "POST",
          .path = std::move(path),
          .body = std::move(body),
          .content_type = "application/json; charset=utf-8",
          .client = "c"};
}

HttpRequest PostChat(std::string_view more = "") {
  return Post("/v1/chat/completions", fmt::format("{}{}}}", kHello, more));
}

// Runs an exchange to its end; the body of the answer.
HttpResponse Finish(HttpReply reply) {
  if (reply.exchange == nullptr) return reply.response;
  std::string body;
  EXPECT_TRUE(Eventually([&] { return reply.exchange->Advance(&body); }));
  if (!reply.is_stream) return reply.exchange->TakeResponse();
  reply.response.body = body;
  return reply.response;
}

// The data of a stream's events.
std::vector<Json> Events(const std::string& body) {
  std::vector<Json> events;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    EXPECT_EQ(body.substr(at, 6), "data: ");
    const std::string data = body.substr(at + 6, end - at - 6);
    events.push_back(data == "[DONE]" ? Json(data) : Json::parse(data));
    at = end + 2;
  }
  return events;
}

class ServiceTest : public ::testing::Test {
 protected:
  // One token of each script goes to the warm-up.
  void Start(ScriptedEngine::Script script, ScriptedEngine::Options options = {},
             int max_requests = 64) {
    ASSERT_TRUE(
        service_.Start(ScriptedModel(std::move(script), options, max_requests, view_)).has_value());
  }

  Json Body(const HttpRequest& request, int status = 200) {
    const HttpResponse response = Finish(service_.Handle(request));
    EXPECT_EQ(response.status, status) << response.body;
    return Json::parse(response.body);
  }

  std::shared_ptr<EngineView> view_ = std::make_shared<EngineView>();
  Service service_{ServiceOptions{}};
};

TEST_F(ServiceTest, HealthFollowsTheModel) {
  EXPECT_EQ(Body(Get("/health"), 503)["error"]["message"], "The model is loading");
  Body(Get("/ping"), 503);
  Body(PostChat(), 503);
  Start(Says("Hi<turn|>"));
  for (const char* path : {"/health", "/ready", "/ping"}) Body(Get(path));
  Body(PostChat());
  view_->throws_at_step = view_->n_steps.load();
  Body(PostChat(), 500);
  Body(Get("/ping"), 503);
  Body(PostChat(), 503);
}

TEST_F(ServiceTest, AModelThatGivesNoTokenIsAnError) {
  view_->throws_at_step = 0;
  const Status status = service_.Start(ScriptedModel(Says("a"), {}, 8, view_));
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message.find("out of memory"), std::string::npos);
  Body(Get("/health"), 503);
}

// Cases F5 and H4 of the field reports.
TEST_F(ServiceTest, StreamsSayTheSameAsWholeAnswers) {
  Start(
      Says("<|channel>thought\nhm\n<channel|>Hi 😀. "
           "<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g{}<tool_call|><|tool_response>"));
  const std::string tools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";
  const Json whole = Body(PostChat(tools));
  const Json& message = whole["choices"][0]["message"];
  EXPECT_EQ(message["content"], "Hi 😀. ");
  EXPECT_EQ(message["reasoning_content"], "hm");
  EXPECT_EQ(message["tool_calls"].size(), 2u);
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "tool_calls");

  const HttpResponse stream = Finish(service_.Handle(
      PostChat(tools + R"(,"stream":true,"stream_options":{"include_usage":true})")));
  EXPECT_EQ(stream.content_type, "text/event-stream");
  const std::vector<Json> events = Events(stream.body);
  std::string content;
  std::string reasoning;
  Json calls = Json::array();
  std::string finish;
  int n_usage = 0;
  for (const Json& event : events) {
    if (event == "[DONE]") continue;
    EXPECT_EQ(event["id"], events[0]["id"]);
    n_usage += static_cast<int>(event.contains("usage"));
    if (event["choices"].empty()) {
      EXPECT_EQ(event["usage"], whole["usage"]);
      continue;
    }
    const Json& delta = event["choices"][0]["delta"];
    content += delta.value("content", "");
    reasoning += delta.value("reasoning_content", "");
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      EXPECT_EQ(call["index"], calls.size());
      calls.push_back(call["function"]);
    }
    const Json& reason = event["choices"][0]["finish_reason"];
    if (!reason.is_null()) finish += reason.get<std::string>();
  }
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(n_usage, 1);
  EXPECT_EQ(content, message["content"].get<std::string>());
  EXPECT_EQ(reasoning, message["reasoning_content"].get<std::string>());
  EXPECT_EQ(calls[1], message["tool_calls"][1]["function"]);
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
}

// Case H4 of the field reports.
TEST_F(ServiceTest, NoUsageChunkUnlessAskedFor) {
  Start(Says("Hi<turn|>"));
  for (const Json& event : Events(Finish(service_.Handle(PostChat(R"(,"stream":true)"))).body)) {
    EXPECT_FALSE(event.is_object() && event.contains("usage"));
  }
}

// Case H2 of the field reports.
TEST_F(ServiceTest, SeveralChoicesShareOnePrompt) {
  std::mutex mutex;
  std::vector<uint64_t> seeds;
  Start([&](const engine::Request& request) {
    const std::lock_guard lock(mutex);
    seeds.push_back(request.sampling.seed);
    return Ids(fmt::format("choice {}<turn|>", request.sampling.seed % 10));
  });
  seeds.clear();
  const Json three = Body(PostChat(R"(,"n":3,"seed":1)"));
  EXPECT_EQ(seeds, (std::vector<uint64_t>{1, 2, 3}));
  ASSERT_EQ(three["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(three["choices"][i]["index"], i);
    EXPECT_EQ(three["choices"][i]["message"]["content"], fmt::format("choice {}", i + 1));
  }
  EXPECT_EQ(three["usage"]["prompt_tokens"], Body(PostChat())["usage"]["prompt_tokens"]);
  Json texts = {"", "", ""};
  for (const Json& event :
       Events(Finish(service_.Handle(PostChat(R"(,"n":3,"seed":1,"stream":true)"))).body)) {
    if (event == "[DONE]") continue;
    const Json& choice = event["choices"][0];
    Json& text = texts[choice["index"].get<size_t>()];
    text = text.get<std::string>() + choice["delta"].value("content", "");
  }
  EXPECT_EQ(texts, Json({"choice 1", "choice 2", "choice 3"}));
}

// Case H3 of the field reports.
TEST_F(ServiceTest, LogprobsHaveOpenAisShape) {
  Start(Says("né<turn|>"));
  const auto logprobs = [&](const char* more) {
    return Body(PostChat(more))["choices"][0]["logprobs"];
  };
  EXPECT_TRUE(logprobs("").is_null());
  const Json alone = logprobs(R"(,"logprobs":true)")["content"];
  EXPECT_EQ(alone[0]["token"], "n");
  EXPECT_EQ(alone[0]["bytes"], Json({110}));
  EXPECT_EQ(alone[0]["top_logprobs"], Json::array());
  EXPECT_EQ(logprobs(R"(,"logprobs":true,"top_logprobs":0)")["content"], alone);
  const Json top = logprobs(R"(,"logprobs":true,"top_logprobs":5)")["content"][0]["top_logprobs"];
  EXPECT_EQ(top[0]["token"], "n");
  const Json old = Body(Post("/v1/completions", R"({"prompt":"a","logprobs":1})"))["choices"][0];
  EXPECT_EQ(old["logprobs"]["tokens"][0], "n");
  EXPECT_EQ(old["logprobs"]["token_logprobs"][0], -0.5);
  EXPECT_EQ(old["logprobs"]["text_offset"][0], 0);
}

// Case G5 of the field reports.
TEST_F(ServiceTest, AFailureInAStreamIsAnErrorAndNoEnd) {
  Start(Says("abcdefgh<turn|>"));
  view_->throws_at_step = view_->n_steps + 5;
  const auto events = Events(Finish(service_.Handle(PostChat(R"(,"stream":true)"))).body);
  EXPECT_NE(events.back()["error"]["message"].get<std::string>().find("out of memory"),
            std::string::npos);
  for (const Json& event : events) {
    EXPECT_NE(event, "[DONE]");
    if (event.contains("choices")) {
      EXPECT_TRUE(event["choices"][0]["finish_reason"].is_null());
    }
  }
}

// Case I3 of the field reports.
TEST_F(ServiceTest, FullQueueIsRefusedAtOnce) {
  Start(Says("a"), {.max_sequences = 1}, 2);
  HeldStep step(*view_);
  std::vector<HttpReply> replies;
  for (int i = 0; i < 6; ++i) replies.push_back(service_.Handle(PostChat(R"(,"max_tokens":100)")));
  step.Release();
  int n_taken = 0;
  for (HttpReply& reply : replies) {
    if (reply.exchange == nullptr) {
      EXPECT_EQ(reply.response.status, 429);
      EXPECT_EQ(reply.response.headers[0].first, "Retry-After");
      EXPECT_EQ(Json::parse(reply.response.body)["error"]["type"], "rate_limit_error");
    } else {
      ++n_taken;
      EXPECT_EQ(Finish(std::move(reply)).status, 200);
    }
  }
  EXPECT_EQ(n_taken, 2);
  Body(PostChat(R"(,"n":3)"), 400);  // would never fit
}

// Case I1 of the field reports: it is counted, too.
TEST_F(ServiceTest, AnAbandonedExchangeIsCancelled) {
  Start(Says("a"), {.step_time = std::chrono::milliseconds(1)});
  for (const bool streams : {true, false}) {
    HttpReply reply = service_.Handle(PostChat(streams ? R"(,"stream":true)" : ""));
    EXPECT_TRUE(Eventually([&] { return view_->n_live == 1; }));
    reply.exchange.reset();
    EXPECT_TRUE(Eventually([&] { return view_->n_live == 0; }));
  }
  const std::string metrics = service_.Handle(Get("/metrics")).response.body;
  EXPECT_NE(metrics.find("finished_reason=\"abort\"} 2"), std::string::npos);
}

// Content of a whole answer, and of a stream.
TEST_F(ServiceTest, WhatIsCutIsTheSameInAStream) {
  struct Case {
    const char* field_report;
    std::string answer;
    std::string more;
    std::string content;
    std::string finish_reason;
  };
  std::vector<int32_t> three = Ids("abcdefghijkl");
  three.resize(3);
  const std::string three_tokens = TinyTokenizer().Decode(three, true).value();
  for (const Case& one : std::vector<Case>{
           {"F8", "<|channel>thought\nhm<channel|>Yes<turn|>", R"(,"reasoning_effort":"high")",
            "Yes", "stop"},
           {"F8", "<|channel>thought\n<channel|>Yes<turn|>", "", "Yes", "stop"},
           {"G2", "hi 😀", fmt::format(R"(,"max_tokens":{})", Ids("hi 😀").size() - 1), "hi ",
            "length"},
           {"G3", "A green door<turn|>", R"(,"stop":["en door"])", "A gre", "stop"},
           {"G3", "!\n<turn|>", R"(,"stop":["\n"])", "!", "stop"},
           {"H1", "abcdefghijkl", R"(,"max_completion_tokens":3)", three_tokens, "length"}}) {
    Service service({});
    ASSERT_TRUE(service.Start(ScriptedModel(Says(one.answer))).has_value());
    const Json whole = Json::parse(Finish(service.Handle(PostChat(one.more))).body);
    EXPECT_EQ(whole["choices"][0]["message"]["content"], one.content) << one.field_report;
    EXPECT_EQ(whole["choices"][0]["finish_reason"], one.finish_reason) << one.field_report;
    std::string content;
    std::string finish_reason;
    for (const Json& event :
         Events(Finish(service.Handle(PostChat(one.more + R"(,"stream":true)"))).body)) {
      if (event == "[DONE]") continue;
      content += event["choices"][0]["delta"].value("content", "");
      const Json& reason = event["choices"][0]["finish_reason"];
      if (!reason.is_null()) finish_reason = reason.get<std::string>();
    }
    EXPECT_EQ(content, one.content) << one.field_report;
    EXPECT_EQ(finish_reason, one.finish_reason) << one.field_report;
  }
}

TEST_F(ServiceTest, AStopStringEndsTheWork) {
  Start(Says("abcabcabcabc"));
  const Json answer = Body(PostChat(R"(,"stop":"ca","max_tokens":400)"));
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "ab");
  EXPECT_TRUE(Eventually([&] { return view_->n_live == 0; }));
}

// Case I4 of the field reports.
TEST_F(ServiceTest, TheContextsEndIsALimit) {
  Start(Says("a"));
  const std::vector<int> ids(510, 300);
  const Json answer =
      Body(Post("/v1/completions", Json({{"prompt", ids}, {"max_tokens", 50}}).dump()));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 2);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  Body(Post("/v1/completions", Json({{"prompt", std::vector<int>(513, 300)}}).dump()), 400);
}

// Case H9 of the field reports.
TEST_F(ServiceTest, ErrorsHaveOpenAisShape) {
  Start(Says("a"));
  for (const auto& [request, status] : std::vector<std::pair<HttpRequest, int>>{
           {Get("/v1/nope"), 404},
           {Post("/v1/chat/completions", "{:"), 400},
           {Post("/v1/chat/completions", "{\"\xff\xfe\":1}"), 400},
           {Get("/v1/chat/completions"), 405},
           {Get("/v1/models/nope"), 404},
           {Post("/tokenize", "{}"), 400}}) {
    const Json error = Body(request, status)["error"];
    for (const char* key : {"message", "type", "param", "code"}) EXPECT_TRUE(error.contains(key));
  }
  HttpRequest form = PostChat();
  form.content_type = "text/plain";  // what a page of another origin may send unasked
  Body(form, 415);
}

TEST_F(ServiceTest, OtherEndpoints) {
  Start(Says("Hi<turn|>"));
  EXPECT_EQ(Body(Get("/v1/models"))["data"][0]["id"], "tiny");
  EXPECT_EQ(Body(Get("/v1/models/alias"))["id"], "alias");
  const Json tokens = Body(Post("/tokenize", R"({"prompt":"Hi"})"));
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(Body(Post("/detokenize", Json({{"tokens", tokens["tokens"]}}).dump()))["prompt"],
            "<bos>Hi");
  EXPECT_TRUE(Body(Get("/openapi.json"))["paths"].contains("/v1/chat/completions"));
  EXPECT_TRUE(Body(Get("/version")).contains("version"));
  EXPECT_EQ(Body(Post("/invocations", R"({"prompt":"a"})"))["object"], "text_completion");
  EXPECT_EQ(Body(Post("/invocations", fmt::format("{}}}", kHello)))["object"], "chat.completion");
  EXPECT_TRUE(service_.Handle(Get("/")).response.content_type.starts_with("text/html"));
}

TEST_F(ServiceTest, MetricsAreOnesThatPrometheusReads) {
  Start(Says("Hi<turn|>"));
  Body(PostChat());
  const std::string text = service_.Handle(Get("/metrics")).response.body;
  const std::regex line(R"((# (HELP|TYPE) \S+ .+)|([a-z0-9_:]+(\{([a-z_]+="[^"]*",?)*\})? \S+))");
  size_t at = 0;
  for (size_t end = 0; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    EXPECT_TRUE(std::regex_match(text.substr(at, end - at), line)) << text.substr(at, end - at);
  }
  EXPECT_NE(text.find("vllm:request_success_total{model_name=\"tiny\",finished_reason=\"stop\"} 1"),
            std::string::npos);
  EXPECT_NE(text.find("vllm:num_requests_running{model_name=\"tiny\"} 0"), std::string::npos);
}

// Case I9 of the field reports.
TEST_F(ServiceTest, DrainingRefusesNewWorkAndFinishesOld) {
  Start(Says("Hi<turn|>"));
  HttpReply running = service_.Handle(PostChat());
  service_.Drain();
  Body(Get("/ready"), 503);
  Body(PostChat(), 503);
  EXPECT_EQ(Finish(std::move(running)).status, 200);
}

TEST(Service, KeysAndOrigins) {
  Service service({.api_keys = {"k1", "key2"}, .cors_origin = "http://a"});
  ASSERT_TRUE(service.Start(ScriptedModel(Says("Hi<turn|>"))).has_value());
  HttpRequest request = PostChat();
  for (const auto& [header, status] : std::vector<std::pair<std::string, int>>{
           {"", 401}, {"Bearer k2", 401}, {"k1", 401}, {"Bearer k1", 200}, {"Bearer key2", 200}}) {
    request.authorization = header;
    EXPECT_EQ(Finish(service.Handle(request)).status, status) << header;
  }
  EXPECT_EQ(service.Handle(Get("/health")).response.status, 200);
  const auto allows = [&](std::string origin) {
    HttpRequest page = Get("/health");
    page.origin = std::move(origin);
    return !service.Handle(page).response.headers.empty();
  };
  EXPECT_TRUE(allows("http://a"));
  EXPECT_FALSE(allows("http://b"));
}

TEST(Service, OneLogLineARequestWithoutWhatWasSaid) {
  for (const bool json : {false, true}) {
    for (const bool shows_prompts : {false, true}) {
      std::FILE* file = std::tmpfile();
      {
        LineWriter lines(::fileno(file));
        Service service({.log = {.lines = &lines, .json = json, .shows_prompts = shows_prompts}});
        ASSERT_TRUE(service.Start(ScriptedModel(Says("Hi<turn|>"))).has_value());
        Finish(service.Handle(PostChat()));
        Finish(service.Handle(Get("/\n")));
      }
      std::rewind(file);
      char buffer[4096] = {};
      const std::string text(buffer, std::fread(buffer, 1, sizeof buffer, file));
      std::fclose(file);
      EXPECT_EQ(std::ranges::count(text, '\n'), 2) << text;
      EXPECT_EQ(text.find("Hello") != std::string::npos, shows_prompts) << text;
      EXPECT_NE(text.find(json ? "\"finish_reasons\":[\"stop\"]" : "finish=stop"),
                std::string::npos)
          << text;
    }
  }
}

TEST(DefaultSampling, IsWhatTheModelsMakersSay) {
  const engine::Sampling tiny = ReadDefaultSampling(kTinyModel).value();
  EXPECT_EQ(tiny.temperature, 1);
  EXPECT_EQ(tiny.top_k, 64);
  EXPECT_EQ(tiny.top_p, 0.95);
  EXPECT_EQ(ReadDefaultSampling("/nonexistent").value().temperature, 1);
}

}  // namespace
}  // namespace nibble::server
