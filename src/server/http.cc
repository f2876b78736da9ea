#include "server/http.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "server/api_error.h"

namespace nibble::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using beast::error_code;
using Clock = std::chrono::steady_clock;

constexpr auto kAsTuple = asio::as_tuple(asio::use_awaitable);

// What the sessions of one server share.
struct Shared {
  HttpOptions options;
  HttpHandler& handler;
  std::atomic<bool> draining = false;
  std::atomic<int> n_connections = 0;
  std::atomic<int> n_exchanges = 0;
  // Exchanges are woken from other threads for as long as they live, and the last ones live until
  // the context that they are woken through goes: from then on nothing may be posted to it.
  std::mutex waking = {};
  bool takes_wakes = true;
};

// Counts for as long as it lives.
class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& count_;
};

// A timer that others end early. Lives on its session's strand.
struct Alarm {
  explicit Alarm(const asio::any_io_executor& executor) : timer(executor) {}
  void Ring() {
    rung = true;
    timer.cancel();
  }
  asio::steady_timer timer;
  bool rung = false;
  bool client_is_gone = false;
  bool is_watching = false;
  bool is_over = false;  // the answer: the watcher is to end
};

HttpRequest ToRequest(const http::request<http::string_body>& message, std::string client) {
  const auto field = [&](http::field name) { return std::string(message[name]); };
  const std::string target(message.target());
  return {.method = std::string(message.method_string()),
          .path = target.substr(0, target.find('?')),
          .body = message.body(),
          .content_type = field(http::field::content_type),
          .authorization = field(http::field::authorization),
          .origin = field(http::field::origin),
          .client = std::move(client)};
}

ApiError ToApiError(const error_code& error, const HttpOptions& options) {
  if (error == http::error::body_limit) {
    return {.status = 413,
            .message = fmt::format("The body is larger than {} bytes", options.max_body_bytes),
            .code = "body_too_large"};
  }
  if (error == http::error::header_limit) {
    return {.status = 431,
            .message = fmt::format("The header is larger than {} bytes", options.max_header_bytes),
            .code = "header_too_large"};
  }
  return {.message = fmt::format("Not HTTP: {}", error.message()), .code = "bad_request"};
}

// One connection, from accept to close. What a coroutine is given lives in a variable: GCC 12
// destroys temporaries in an awaited expression twice.
class Session {
 public:
  Session(tcp::socket socket, Shared& shared)
      : stream_(std::move(socket)), shared_(shared), counted_(shared.n_connections) {
    error_code ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    client_ = stream_.socket().remote_endpoint(ignored).address().to_string();
  }

  asio::awaitable<void> Run() {
    if (shared_.n_connections > shared_.options.max_connections) {
      const ApiError error{.status = 503,
                           .message = "Too many connections",
                           .code = "too_many_connections",
                           .retry_after_s = 1};
      co_await Refuse(error);
      co_return;
    }
    while (co_await ServeOne()) {
    }
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_both, ignored);
  }

 private:
  // Answers one request; whether there may be another one.
  asio::awaitable<bool> ServeOne() {
    http::request_parser<http::string_body> parser;
    parser.header_limit(shared_.options.max_header_bytes);
    parser.body_limit(shared_.options.max_body_bytes);
    if (!co_await Await()) co_return false;
    if (const error_code error = co_await Read(parser); error) {
      const bool is_http_fault =
          error.category() == http::make_error_code(http::error{}).category();
      if (is_http_fault && error != http::error::end_of_stream &&
          error != http::error::partial_message) {
        const ApiError api_error = ToApiError(error, shared_.options);
        co_await Refuse(api_error);
      }
      co_return false;
    }
    const Counted exchange(shared_.n_exchanges);
    keeps_alive_ = parser.get().keep_alive();
    version_ = parser.get().version();
    is_head_ = parser.get().method() == http::verb::head;
    HttpReply reply = shared_.handler.Handle(ToRequest(parser.release(), client_));
    keeps_alive_ = keeps_alive_ && !shared_.draining;
    const bool is_whole = reply.exchange == nullptr ? co_await Write(std::move(reply.response))
                                                    : co_await Answer(std::move(reply));
    co_return is_whole && !shared_.draining;
  }

  // Waits for the first byte of a request.
  asio::awaitable<bool> Await() {
    if (buffer_.size() > 0) co_return true;
    stream_.expires_after(shared_.options.idle_timeout);
    constexpr size_t kFirstRead = 2048;
    const auto [error, n] = co_await stream_.async_read_some(buffer_.prepare(kFirstRead), kAsTuple);
    buffer_.commit(n);
    co_return !error;
  }

  asio::awaitable<error_code> Read(http::request_parser<http::string_body>& parser) {
    stream_.expires_after(shared_.options.header_timeout);
    const auto [error, n] = co_await http::async_read_header(stream_, buffer_, parser, kAsTuple);
    if (error) co_return error;
    stream_.expires_after(shared_.options.body_timeout);
    if (beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      const http::response<http::empty_body> go_on(http::status::continue_, 11);
      const auto [write_error, n_written] = co_await http::async_write(stream_, go_on, kAsTuple);
      if (write_error) co_return write_error;
    }
    const auto [body_error, n_body] = co_await http::async_read(stream_, buffer_, parser, kAsTuple);
    co_return body_error;
  }

  template <typename Body>
  void SetHead(const HttpResponse& response, http::response<Body>* message) {
    message->result(static_cast<unsigned>(response.status));
    message->version(version_);
    message->set(http::field::server, "nibble/" NIBBLE_VERSION);
    message->set(http::field::content_type, response.content_type);
    message->set("X-Content-Type-Options", "nosniff");
    for (const auto& [name, value] : response.headers) message->set(name, value);
    message->keep_alive(keeps_alive_);
  }

  asio::awaitable<bool> Write(HttpResponse response) {
    http::response<http::string_body> message;
    SetHead(response, &message);
    message.body() = std::move(response.body);
    message.prepare_payload();
    http::response_serializer<http::string_body> serializer(message);
    stream_.expires_after(shared_.options.write_timeout);
    if (is_head_) {
      const auto [error, n] = co_await http::async_write_header(stream_, serializer, kAsTuple);
      co_return !error && keeps_alive_;
    }
    const auto [error, n] = co_await http::async_write(stream_, serializer, kAsTuple);
    co_return !error && keeps_alive_;
  }

  // An error before there is a request. What the client is still sending is read and dropped for
  // a moment, since closing at once would take the answer away from it.
  asio::awaitable<void> Refuse(const ApiError& error) {
    keeps_alive_ = false;
    HttpResponse response = ErrorResponse(error);
    co_await Write(std::move(response));
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    constexpr std::chrono::seconds kPatience{5};
    stream_.expires_after(kPatience);
    std::vector<char> dropped(64 << 10);
    for (bool more = true; more;) {
      const auto [read_error, n] =
          co_await stream_.async_read_some(asio::buffer(dropped), kAsTuple);
      more = !read_error;
    }
  }

  // An answer that takes time. The client is watched meanwhile: if it goes, the exchange ends.
  asio::awaitable<bool> Answer(HttpReply reply) {
    auto alarm = std::make_shared<Alarm>(stream_.get_executor());
    reply.exchange->SetWake(
        [weak = std::weak_ptr(alarm), executor = stream_.get_executor(), &shared = shared_] {
          const std::lock_guard lock(shared.waking);
          if (!shared.takes_wakes) return;
          asio::post(executor, [weak] {
            if (const auto woken = weak.lock()) woken->Ring();
          });
        });
    alarm->is_watching = true;
    asio::co_spawn(stream_.get_executor(), Watch(alarm), asio::detached);
    const bool is_whole =
        reply.is_stream ? co_await Stream(reply, *alarm) : co_await Await(reply, *alarm);
    reply.exchange.reset();
    // The watcher uses the socket, so it ends before anything else happens to that.
    alarm->is_over = true;
    while (alarm->is_watching) {
      alarm->rung = false;
      error_code ignored;
      stream_.socket().cancel(ignored);
      co_await Sleep(*alarm, std::chrono::milliseconds(1));
    }
    co_return is_whole&& keeps_alive_ && !alarm->client_is_gone;
  }

  asio::awaitable<void> Watch(std::shared_ptr<Alarm> alarm) {
    bool is_readable = false;
    while (!is_readable && !alarm->is_over) {
      const auto [error] = co_await stream_.socket().async_wait(tcp::socket::wait_read, kAsTuple);
      if (error) break;
      char byte = 0;
      const int fd = stream_.socket().native_handle();
      const ssize_t n = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      // More to read is a further request: it waits in the socket, and a client that goes after
      // that shows when it is written to.
      is_readable = n > 0;
      if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) continue;
      alarm->client_is_gone = true;
      error_code ignored;
      stream_.socket().cancel(ignored);  // a write that waits for it, too
      break;
    }
    alarm->is_watching = false;
    alarm->Ring();
  }

  // Until it rings or the time is over.
  static asio::awaitable<void> Sleep(Alarm& alarm, std::chrono::milliseconds time) {
    if (!alarm.rung) {
      alarm.timer.expires_after(time);
      co_await alarm.timer.async_wait(kAsTuple);
    }
  }

  asio::awaitable<bool> Await(HttpReply& reply, Alarm& alarm) {
    std::string unused;
    while (!alarm.client_is_gone) {
      alarm.rung = false;
      if (reply.exchange->Advance(&unused)) {
        HttpResponse response = reply.exchange->TakeResponse();
        std::ranges::move(reply.response.headers, std::back_inserter(response.headers));
        co_return co_await Write(std::move(response));
      }
      co_await Sleep(alarm, std::chrono::hours(1));
    }
    co_return false;
  }

  asio::awaitable<bool> Stream(HttpReply& reply, Alarm& alarm) {
    if (!co_await WriteStreamHead(reply.response)) co_return false;
    while (!alarm.client_is_gone) {
      alarm.rung = false;
      std::string body;
      const bool is_done = reply.exchange->Advance(&body);
      if (!body.empty() && !co_await WriteChunk(body)) co_return false;
      if (is_done) co_return co_await WriteLastChunk();
      co_await Sleep(alarm, shared_.options.ping_interval);
      const bool is_silent = !alarm.rung;
      if (is_silent && !co_await WriteChunk(": still working\n\n")) co_return false;
    }
    co_return false;
  }

  bool is_chunked() const { return version_ >= 11; }

  asio::awaitable<bool> WriteStreamHead(const HttpResponse& response) {
    http::response<http::empty_body> message;
    if (!is_chunked()) keeps_alive_ = false;  // the end of the connection ends the answer
    SetHead(response, &message);
    message.chunked(is_chunked());
    http::response_serializer<http::empty_body> serializer(message);
    stream_.expires_after(shared_.options.write_timeout);
    const auto [error, n] = co_await http::async_write_header(stream_, serializer, kAsTuple);
    co_return !error;
  }

  asio::awaitable<bool> WriteChunk(std::string_view body) {
    stream_.expires_after(shared_.options.write_timeout);
    const asio::const_buffer bytes(body.data(), body.size());
    if (is_chunked()) {
      const auto [error, n] =
          co_await asio::async_write(stream_, http::make_chunk(bytes), kAsTuple);
      co_return !error;
    }
    const auto [error, n] = co_await asio::async_write(stream_, bytes, kAsTuple);
    co_return !error;
  }

  asio::awaitable<bool> WriteLastChunk() {
    if (!is_chunked()) co_return true;
    const auto [error, n] = co_await asio::async_write(stream_, http::make_chunk_last(), kAsTuple);
    co_return !error;
  }

  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  Shared& shared_;
  const Counted counted_;
  std::string client_;
  // Of the request being answered.
  bool keeps_alive_ = false;
  bool is_head_ = false;
  unsigned version_ = 11;
};

asio::awaitable<void> RunSession(tcp::socket socket, Shared& shared) {
  Session session(std::move(socket), shared);
  co_await session.Run();
}

asio::awaitable<void> AcceptAll(tcp::acceptor& acceptor, asio::io_context& io, Shared& shared) {
  while (true) {
    auto [error, socket] = co_await acceptor.async_accept(asio::make_strand(io), kAsTuple);
    if (error == asio::error::operation_aborted) co_return;
    if (error) {  // no descriptor is left: some will be closed
      asio::steady_timer timer(acceptor.get_executor(), std::chrono::milliseconds(50));
      co_await timer.async_wait(kAsTuple);
      continue;
    }
    const asio::any_io_executor executor = socket.get_executor();
    asio::co_spawn(executor, RunSession(std::move(socket), shared), asio::detached);
  }
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const HttpOptions& options, HttpHandler& handler)
      : shared_{.options = options, .handler = handler}, acceptor_(io_) {}

  ~Impl() {
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
    const std::lock_guard lock(shared_.waking);
    shared_.takes_wakes = false;
  }

  Status Listen() {
    const HttpOptions& options = shared_.options;
    const auto place = [&] { return fmt::format("{}:{}", options.host, options.port); };
    error_code error;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
    if (error) return Fail("{}: {}", place(), error.message());
    const tcp::endpoint endpoint = *found.begin();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    constexpr int kBacklog = 1024;
    if (!error) acceptor_.listen(kBacklog, error);
    if (error) return Fail("{}: {}", place(), error.message());
    asio::co_spawn(io_, AcceptAll(acceptor_, io_, shared_), asio::detached);
    for (int i = 0; i < options.n_threads; ++i) threads_.emplace_back([this] { io_.run(); });
    return {};
  }

  int port() const { return acceptor_.local_endpoint().port(); }
  Shared& shared() { return shared_; }

 private:
  Shared shared_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpOptions& options,
                                                       HttpHandler& handler) {
  auto impl = std::make_unique<Impl>(options, handler);
  NIBBLE_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const { return impl_->port(); }
void HttpServer::Drain() { impl_->shared().draining = true; }
int HttpServer::n_exchanges() const { return impl_->shared().n_exchanges; }

}  // namespace nibble::server
