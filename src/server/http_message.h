// A request and its answer as the rest of the server sees them: no sockets, no wire format.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace nibble::server {

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without the query
  std::string body = {};
  std::string content_type = {};
  std::string authorization = {};
  std::string origin = {};
  std::string client = {};  // address
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
};

// An answer that is still being made. One thread at a time; destroying one that is not finished
// ends the work for it: its client has gone.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // `wake` is called, from any thread and never after it was replaced or this
  // object destroyed, when Advance() may have
  // something new. It must return at once and call nothing of this object.
  virtual void SetWake(std::function<void()> wake) = 0;
  // Goes on as far as it can without waiting, and appends what is ready of a stream's body. True:
  // finished.
  virtual bool Advance(std::string* body) = 0;
  // The whole answer, once finished; of one that is no stream.
  virtual HttpResponse TakeResponse() = 0;
};

struct HttpReply {
  HttpResponse response = {};  // without `exchange`; of a stream, everything but the body
  std::unique_ptr<Exchange> exchange = nullptr;
  bool is_stream = false;
};

// What answers requests. Any number of threads.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual HttpReply Handle(const HttpRequest& request) = 0;
};

}  // namespace nibble::server
