#include "server/http.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <deque>

#include "http_client.h"
#include "scripted_model.h"
#include "server/service.h"

namespace nibble::server {
namespace {

using std::chrono::milliseconds;

std::string Ask(std::string_view more) {
  return PostText("/v1/chat/completions",
                  fmt::format(R"({{"messages":[{{"role":"user","content":"x"}}]{}}})", more));
}

class HttpTest : public ::testing::Test {
 protected:
  void Start(ScriptedEngine::Script script, ScriptedEngine::Options options = {},
             HttpOptions http = {}, size_t max_buffered_tokens = 100'000) {
    service_ =
        std::make_unique<Service>(ServiceOptions{.max_buffered_tokens = max_buffered_tokens});
    ServedModel model = ScriptedModel(std::move(script), options, 64, view_);
    model.context_tokens = 1 << 24;
    ASSERT_TRUE(service_->Start(std::move(model)).has_value());
    http.port = 0;
    http_ = HttpServer::Listen(http, *service_).value();
  }

  HttpClient Connect(int receive_bytes = 0) { return HttpClient(http_->port(), receive_bytes); }

  void ExpectHealthy() {
    HttpClient client = Connect();
    client.Send(GetText("/health"));
    EXPECT_TRUE(client.ReadResponse().starts_with("HTTP/1.1 200"));
  }

  std::shared_ptr<EngineView> view_ = std::make_shared<EngineView>();
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> http_;
};

TEST_F(HttpTest, OneConnectionCarriesManyRequests) {
  Start(Says("Hi<turn|>"));
  HttpClient client = Connect();
  for (int i = 0; i < 3; ++i) {
    client.Send(Ask(""));
    EXPECT_NE(client.ReadResponse().find("\"content\":\"Hi\""), std::string::npos);
    client.Send(Ask(R"(,"stream":true)"));
    EXPECT_NE(client.ReadUntil("\r\n0\r\n\r\n").find("data: [DONE]"), std::string::npos);
  }
  client.Send(Ask("") + GetText("/health"));  // the second before the first is answered
  EXPECT_NE(client.ReadResponse().find("\"content\":\"Hi\""), std::string::npos);
  EXPECT_NE(client.ReadResponse().find("\"ok\""), std::string::npos);
  EXPECT_TRUE(Eventually([&] { return http_->n_exchanges() == 0; }));
}

TEST_F(HttpTest, HeadExpectAndOlderVersions) {
  Start(Says("Hi<turn|>"));
  HttpClient head = Connect();
  head.Send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n" + GetText("/health"));
  EXPECT_NE(head.ReadUntil("\"ok\"").find("HTTP/1.1 200"), std::string::npos);
  HttpClient expect = Connect();
  const std::string ask = Ask("");
  const size_t body = ask.find("\r\n\r\n");
  expect.Send(ask.substr(0, body) + "\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(expect.ReadUntil("\r\n\r\n").starts_with("HTTP/1.1 100"));
  expect.Send(ask.substr(body + 4));
  EXPECT_NE(expect.ReadResponse().find("Hi"), std::string::npos);
  HttpClient old = Connect();
  std::string request = Ask(R"(,"stream":true)");
  request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
  old.Send(request);
  const std::string answer = old.ReadAll();  // ended by closing, without chunks
  EXPECT_TRUE(answer.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(answer.find("chunked"), std::string::npos);
}

// Cases H6 and I5 of the field reports.
TEST_F(HttpTest, LimitsAndNonsenseGetErrorsInOpenAisShape) {
  Start(Says("Hi<turn|>"), {}, {.max_header_bytes = 2048, .max_body_bytes = 10'000});
  for (const auto& [bytes, status] : std::vector<std::pair<std::string, int>>{
           {"GET /" + std::string(5000, 'x') + " HTTP/1.1\r\n\r\n", 431},
           {PostText("/tokenize", std::string(2'000'000, ' ')), 413},
           {"\x16\x03\x01 nonsense\r\n\r\n", 400},
           {"POST /tokenize HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400}}) {
    HttpClient client = Connect();
    client.Send(bytes);
    const std::string answer = client.ReadResponse();
    EXPECT_TRUE(answer.starts_with(fmt::format("HTTP/1.1 {}", status))) << answer;
    EXPECT_NE(answer.find("{\"error\":{"), std::string::npos);
  }
  ExpectHealthy();
}

// Case I1 of the field reports: while it waits, while it reads its prompt, while it streams, while
// it is answered in one piece.
TEST_F(HttpTest, AClientThatGoesEndsItsWork) {
  Start(Says("a"), {.max_sequences = 2, .n_prefill_steps = 30, .step_time = milliseconds(1)});
  for (const char* more : {"", R"(,"stream":true)"}) {
    for (const int n_steps : {0, 10, 60}) {
      std::deque<HttpClient> clients;
      for (int i = 0; i < 4; ++i) {  // two of them have to wait
        clients.push_back(Connect());
        clients.back().Send(Ask(more));
      }
      EXPECT_TRUE(Eventually([&] { return view_->n_live == 4; }));
      const int begin = view_->n_steps;
      EXPECT_TRUE(Eventually([&] { return view_->n_steps >= begin + n_steps; }));
      clients.clear();
      EXPECT_TRUE(Eventually([&] { return view_->n_live == 0; }));
    }
  }
  EXPECT_TRUE(Eventually([&] { return http_->n_exchanges() == 0; }));
}

TEST_F(HttpTest, ASlowReaderHoldsUpNobodyAndIsGivenUp) {
  Start(Says("a"), {.step_time = std::chrono::microseconds(20)},
        {.write_timeout = milliseconds(500)},
        /*max_buffered_tokens=*/2000);
  HttpClient slow = Connect(4096);
  slow.Send(Ask(R"(,"stream":true)"));
  EXPECT_TRUE(Eventually([&] { return view_->n_live == 1; }));
  HttpClient other = Connect();
  other.Send(Ask(R"(,"stream":true,"max_tokens":100)"));
  const std::string answer = other.ReadUntil("\r\n0\r\n\r\n");
  EXPECT_NE(answer.find("\"length\""), std::string::npos);
  EXPECT_TRUE(Eventually([&] { return view_->n_live == 0; }));
  EXPECT_TRUE(Eventually([&] { return http_->n_exchanges() == 0; }));
}

// Case G5 of the field reports.
TEST_F(HttpTest, SilentStreamsCarryComments) {
  Start(Says("Hi<turn|>"), {}, {.ping_interval = milliseconds(100)});
  HeldStep step(*view_);
  HttpClient client = Connect();
  client.Send(Ask(R"(,"stream":true)"));
  for (int i = 0; i < 3; ++i) {
    const std::string before = client.ReadUntil("\n: still working\n\n");
    EXPECT_NE(before.find("\n: still working\n\n"), std::string::npos) << before;
    EXPECT_EQ(before.find("\"content\":\"H"), std::string::npos) << before;
  }
  step.Release();
  EXPECT_NE(client.ReadUntil("[DONE]").find("\"content\":\"H"), std::string::npos);
}

TEST_F(HttpTest, IdleAndCreepingConnectionsLeaveTheServiceAlone) {
  rlimit limit = {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  Start(Says("Hi<turn|>"), {},
        {.idle_timeout = std::chrono::minutes(10), .header_timeout = milliseconds(1500)});
  std::vector<HttpClient> idle;
  std::vector<HttpClient> creeping;
  for (int i = 0; i < 1000; ++i) idle.push_back(Connect());
  for (HttpClient& client : idle) {
    ASSERT_TRUE(client.Send(GetText("/health")));
    ASSERT_TRUE(client.ReadResponse().starts_with("HTTP/1.1 200"));
  }
  for (int i = 0; i < 200; ++i) {
    creeping.push_back(Connect());
    creeping.back().Send("POST /v1/chat/completions HTTP/1.1\r\nX-Slow: ");
  }
  for (int i = 0; i < 20; ++i) {
    for (HttpClient& client : creeping) client.Send("a");
    HttpClient client = Connect();
    client.Send(Ask(""));
    ASSERT_NE(client.ReadResponse().find("\"content\":\"Hi\""), std::string::npos);
    std::this_thread::sleep_for(milliseconds(10));
  }
  for (HttpClient& client : creeping) EXPECT_EQ(client.ReadAll(), "");  // cut after the timeout
  for (HttpClient& client : idle) {
    ASSERT_TRUE(client.Send(GetText("/health")));
    ASSERT_TRUE(client.ReadResponse().starts_with("HTTP/1.1 200"));
  }
}

TEST_F(HttpTest, TooManyConnectionsAreToldSo) {
  Start(Says("Hi<turn|>"), {}, {.max_connections = 2});
  HttpClient first = Connect();
  first.Send(GetText("/health"));
  first.ReadResponse();
  HttpClient second = Connect();
  second.Send(GetText("/health"));
  second.ReadResponse();
  EXPECT_TRUE(Connect().ReadResponse().starts_with("HTTP/1.1 503"));
  first.Close();
  EXPECT_TRUE(Eventually([&] {
    HttpClient client = Connect();
    client.Send(GetText("/health"));
    return client.ReadResponse().starts_with("HTTP/1.1 200");
  }));
}

// Case I9 of the field reports.
TEST_F(HttpTest, DrainingFinishesStreamsAndClosesConnections) {
  Start(Says("abcdefghij<turn|>"));
  HeldStep step(*view_);
  HttpClient client = Connect();
  client.Send(Ask(R"(,"stream":true)"));
  EXPECT_TRUE(Eventually([&] { return step.has_begun(); }));
  service_->Drain();
  http_->Drain();
  HttpClient late = Connect();
  late.Send(Ask(""));
  const std::string refused = late.ReadAll();
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503"));
  EXPECT_NE(refused.find("Connection: close"), std::string::npos);
  step.Release();
  EXPECT_NE(client.ReadAll().find("data: [DONE]"), std::string::npos);
  EXPECT_EQ(http_->n_exchanges(), 0);
}

// The engine is in the middle of a step, and all that it takes is taken.
TEST_F(HttpTest, HealthIsAnsweredWhileTheEngineIsBusy) {
  Start(Says("a"));
  const HeldStep step(*view_);
  std::deque<HttpClient> busy;
  for (int i = 0; i < 64; ++i) {
    busy.push_back(Connect());
    busy.back().Send(Ask(i % 2 == 0 ? R"(,"stream":true)" : ""));
  }
  EXPECT_TRUE(Eventually([&] { return step.has_begun() && http_->n_exchanges() == 64; }));
  for (int i = 0; i < 10; ++i) ExpectHealthy();
  HttpClient one_more = Connect();
  one_more.Send(Ask(""));
  EXPECT_TRUE(one_more.ReadResponse().starts_with("HTTP/1.1 429"));
}

// While the engine's thread wakes all exchanges.
TEST_F(HttpTest, GoesInTheMiddleOfAnswers) {
  for (int round = 0; round < 10; ++round) {
    constexpr int kClients = 64;
    Start(Says("a"), {.max_sequences = kClients});
    HeldStep step(*view_);
    std::deque<HttpClient> clients;
    for (int i = 0; i < kClients; ++i) {
      clients.push_back(Connect());
      clients.back().Send(Ask(R"(,"stream":true)"));
    }
    EXPECT_TRUE(Eventually([&] { return step.has_begun() && http_->n_exchanges() == kClients; }));
    step.Release();
    http_.reset();
    service_.reset();
  }
}

TEST(HttpServer, AnAddressInUseIsAnError) {
  Service service({});
  const auto first = HttpServer::Listen({.port = 0}, service);
  ASSERT_TRUE(first.has_value());
  const auto second = HttpServer::Listen({.port = (*first)->port()}, service);
  ASSERT_FALSE(second.has_value());
  EXPECT_NE(second.error().message.find("127.0.0.1"), std::string::npos);
}

}  // namespace
}  // namespace nibble::server
