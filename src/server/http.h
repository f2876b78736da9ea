// HTTP/1.1 over TCP: the only file that knows sockets.
//
// Every connection is one coroutine. A client that sends its request slowly, reads its answer
// slowly or not at all, or goes away, ties up that connection and nothing else; the exchange of one
// that has gone is destroyed at once. Limits hold before a request reaches its handler, and what
// breaks them gets an error in OpenAI's form. Thread-safe. Tested by http_test.cc and soak_test.cc.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "server/http_message.h"

namespace nibble::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any that is free
  int n_threads = 2;
  int max_connections = 4096;  // further ones are told to come back
  uint32_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = 32 << 20;
  std::chrono::milliseconds idle_timeout{75'000};    // between two requests
  std::chrono::milliseconds header_timeout{10'000};  // from a request's first byte
  std::chrono::milliseconds body_timeout{60'000};    // for all of the body
  std::chrono::milliseconds write_timeout{60'000};   // for a client to take what it is sent
  std::chrono::milliseconds ping_interval{30'000};   // of comments in a stream that is silent
};

class HttpServer {
 public:
  // Listens and answers from here on. `handler` must outlive it. Error: the address is not to be
  // had.
  static Result<std::unique_ptr<HttpServer>> Listen(const HttpOptions& options,
                                                    HttpHandler& handler);
  // Cuts all connections.
  ~HttpServer();

  int port() const;
  // Connections close after the answer that they are at.
  void Drain();
  // Requests that are being answered.
  int n_exchanges() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::server
