// HTTP requests by libcurl, the one file that knows it. One client per thread; it keeps its
// connection open between requests. Tested by tests/interop/test_eval_server.py.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nibble::measure {

struct HttpRequest {
  std::string url;
  std::optional<std::string> body = {};  // POST as JSON; nothing: GET
  std::string bearer_token = {};
  double timeout_s = 600;
  // Gets the body of a good answer (status 200) in pieces as they come; false ends the transfer.
  std::function<bool(std::string_view piece)> on_piece = {};
};

struct HttpResponse {
  int status = 0;
  std::string body;
  double retry_after_s = 0;  // 0: not told
};

class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Error: no answer (refused, timed out, broken off), naming the URL.
  Result<HttpResponse> Send(const HttpRequest& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::measure
