// Case I6 of the field reports: many clients at once with requests of all kinds, some of which go
// away: every answer is its own client's, none is lost, and nothing is left behind.
// NIBBLE_SOAK_REQUESTS sets how many there are.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "base/json.h"
#include "http_client.h"
#include "scripted_model.h"
#include "server/http.h"
#include "server/service.h"

namespace nibble::server {
namespace {

constexpr int kClients = 64;

// Gives back the number that stands in the prompt, over and over.
std::vector<int32_t> Echo(const engine::Request& request) {
  const std::string prompt = TinyTokenizer().Decode(request.prompt_ids, true).value();
  std::string number;
  for (const char c : prompt) {
    if (c >= '0' && c <= '9') number += c;
  }
  std::string answer;
  for (int i = 0; i < 10; ++i) answer += number + ".";
  return Ids(answer + "<turn|>");
}

// What a stream's events or a whole answer say.
std::string ContentOf(const std::string& answer, bool is_stream) {
  if (!is_stream) {
    const Json json =
        Json::parse(answer.substr(std::min(answer.find('{'), answer.size())), nullptr, false);
    if (!json.contains("choices")) return answer;
    return json["choices"][0]["message"]["content"].get<std::string>();
  }
  std::string content;
  constexpr std::string_view kKey = "\"content\":\"";
  for (size_t at = 0; (at = answer.find(kKey, at)) != std::string::npos;) {
    at += kKey.size();
    content += answer.substr(at, answer.find('"', at) - at);
  }
  return content;
}

struct Counts {
  std::atomic<int> n_answered = 0;
  std::atomic<int> n_wrong = 0;
  std::atomic<int> n_refused = 0;
};

void RunClient(int port, int client_idx, int n_requests, Counts* counts) {
  std::mt19937 random(client_idx);
  auto connection = std::make_unique<HttpClient>(port);
  for (int i = 0; i < n_requests; ++i) {
    const int number = client_idx * 100'000 + i;
    const bool is_stream = random() % 2 == 0;
    const bool goes_away = random() % 4 == 0;
    const std::string stop = random() % 4 == 0 ? R"(,"stop":"@")" : "";
    connection->Send(
        PostText("/v1/chat/completions",
                 fmt::format(R"({{"messages":[{{"role":"user","content":"{}"}}],"stream":{}{}}})",
                             number, is_stream, stop)));
    if (goes_away) {
      if (is_stream && random() % 2 == 0) connection->ReadUntil("\"content\"");
      connection = std::make_unique<HttpClient>(port);
      continue;
    }
    const std::string answer =
        is_stream ? connection->ReadUntil("\r\n0\r\n\r\n") : connection->ReadResponse();
    if (answer.starts_with("HTTP/1.1 429")) {
      ++counts->n_refused;
      continue;
    }
    std::string expected;
    for (int k = 0; k < 10; ++k) expected += fmt::format("{}.", number);
    ++counts->n_answered;
    if (ContentOf(answer, is_stream) != expected) {
      ++counts->n_wrong;
      ADD_FAILURE() << "request " << number << ": " << answer;
    }
  }
}

TEST(Soak, MixedRequestsWithRandomCancels) {
  const char* wanted = std::getenv("NIBBLE_SOAK_REQUESTS");
  const int n_each = (wanted == nullptr ? 1280 : std::atoi(wanted)) / kClients;
  const auto view = std::make_shared<EngineView>();
  Service service({});
  ASSERT_TRUE(service.Start(ScriptedModel(Echo, {.max_sequences = 16}, 200, view)).has_value());
  const auto http = HttpServer::Listen({.port = 0}, service).value();
  Counts counts;
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back(RunClient, http->port(), i + 1, n_each, &counts);
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(counts.n_wrong, 0);
  EXPECT_EQ(counts.n_refused, 0);
  EXPECT_GT(counts.n_answered, n_each * kClients / 2);
  EXPECT_TRUE(Eventually([&] { return view->n_live == 0 && http->n_exchanges() == 0; }));
}

}  // namespace
}  // namespace nibble::server
