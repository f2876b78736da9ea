// A server that speaks OpenAI's API as a target: /v1/chat/completions and /v1/completions, as
// vLLM, llama.cpp's server and `nibble serve` understand them. Tested by
// tests/interop/test_eval_server.py.
#pragma once

#include <atomic>
#include <string>

#include "base/json.h"
#include "measure/http_client.h"
#include "measure/target.h"

namespace nibble::measure {

struct ServerOptions {
  std::string url;           // with or without /v1
  std::string model = {};    // "": the first that the server lists
  std::string api_key = {};  // "": none
  double timeout_s = 600;
  int max_attempts = 5;           // of a request that meets no server, a full or a failing one
  double first_back_off_s = 0.5;  // doubles, to 8 s; a server's Retry-After goes before
};

class HttpTarget : public Target {
 public:
  // Asks the server for its models. Error: no answer, or no such model.
  static Result<std::unique_ptr<HttpTarget>> Connect(ServerOptions options);

  void AskAll(std::span<const Query> queries, int concurrency, const OnReply& on_reply) override;

  const std::string& model() const { return options_.model; }
  // {"server", "version", "context_tokens", "kv_tokens", ...}: what it tells, "unknown" else.
  Json Facts();

 private:
  explicit HttpTarget(ServerOptions options) : options_(std::move(options)) {}

  Result<Reply> AskServer(HttpClient& client, const Query& query, const std::atomic<bool>& stopped);
  Json BodyOf(const Query& query) const;
  Result<Json> Get(HttpClient& client, const std::string& path) const;
  HttpRequest Request(const std::string& path) const;

  ServerOptions options_;
  Json model_card_;  // of /v1/models
};

}  // namespace nibble::measure
