// The server's endpoints: who may call them, in which state, and what they answer.
//
// It exists before its model, so that health can say that the model is loading, and outlives its
// welcome while it drains. Thread-safe. Tested by service_test.cc.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/generation.h"
#include "server/http_message.h"
#include "server/metrics.h"
#include "server/request_log.h"
#include "server/served_model.h"

namespace nibble::server {

struct ServiceOptions {
  std::vector<std::string> api_keys = {};  // none: everybody may ask
  std::string cors_origin = {};            // "": no page of another origin may; "*": all may
  size_t max_buffered_tokens = 4096;       // of one answer, that its client has not read
  LogOptions log = {};
};

class Service : public HttpHandler {
 public:
  explicit Service(ServiceOptions options);
  ~Service() override;

  // Once. Ready as soon as the model has given its first token; the error, if it gives none.
  Status Start(ServedModel model);
  // From here on new work is refused and health says so; what runs goes on.
  void Drain() { draining_ = true; }

  HttpReply Handle(const HttpRequest& request) override;

 private:
  using Endpoint = HttpReply (Service::*)(const HttpRequest&);
  struct Route {
    std::string_view method;
    std::string_view path;
    Endpoint endpoint;
    bool is_open = false;  // to all and at all times; others need a key and a model that answers
  };
  static const std::vector<Route>& Routes();

  HttpReply Dispatch(const HttpRequest& request);
  bool MayCall(const HttpRequest& request) const;
  void AddCors(const HttpRequest& request, HttpResponse* response) const;
  // Why no tokens can be had now; "" if they can.
  std::string Unavailable() const;

  HttpReply Health(const HttpRequest& request);
  HttpReply Models(const HttpRequest& request);
  HttpReply Model(const HttpRequest& request);
  HttpReply Chat(const HttpRequest& request);
  HttpReply Completions(const HttpRequest& request);
  HttpReply Invocations(const HttpRequest& request);
  HttpReply Tokenize(const HttpRequest& request);
  HttpReply Detokenize(const HttpRequest& request);
  HttpReply Version(const HttpRequest& request);
  HttpReply MetricsText(const HttpRequest& request);
  HttpReply OpenApi(const HttpRequest& request);
  HttpReply Page(const HttpRequest& request);
  HttpReply Generate(const HttpRequest& request, ApiResult<GenerationRequest> parsed);

  const ServiceOptions options_;
  Metrics metrics_;
  RequestLog log_;
  std::unique_ptr<ServedModel> model_;  // written before is_ready_
  std::atomic<bool> is_ready_ = false;
  std::atomic<bool> draining_ = false;
};

}  // namespace nibble::server
