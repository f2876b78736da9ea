// A plain blocking HTTP client over a socket, for tests that need to be rude, slow or many.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <utility>

namespace nibble::server {

class HttpClient {
 public:
  // receive_bytes > 0: a small buffer, for readers that are to be slow.
  explicit HttpClient(int port, int receive_bytes = 0) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_bytes > 0) {
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    }
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    is_connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~HttpClient() { Close(); }
  HttpClient(HttpClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), is_connected_(other.is_connected_) {}
  HttpClient(const HttpClient&) = delete;

  bool is_connected() const { return is_connected_; }
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Reads until the text has `mark` in it; all that came so far, which is forgotten then.
  std::string ReadUntil(std::string_view mark) {
    while (read_.find(mark) == std::string::npos && ReadMore()) {
    }
    return std::exchange(read_, std::string());
  }

  // A response with Content-Length, header and body.
  std::string ReadResponse() {
    while (read_.find("\r\n\r\n") == std::string::npos && ReadMore()) {
    }
    const size_t begin = read_.find("\r\n\r\n") + 4;
    const size_t at = read_.find("Content-Length: ");
    if (at == std::string::npos) return std::exchange(read_, std::string());
    const size_t n_bytes = begin + std::stoul(read_.substr(at + 16));
    while (read_.size() < n_bytes && ReadMore()) {
    }
    std::string response = read_.substr(0, n_bytes);
    read_.erase(0, n_bytes);
    return response;
  }

  // Everything until the other side closes.
  std::string ReadAll() {
    while (ReadMore()) {
    }
    return std::exchange(read_, std::string());
  }

 private:
  bool ReadMore() {
    pollfd waiting = {.fd = fd_, .events = POLLIN, .revents = 0};
    constexpr int kNeverMs = 300'000;  // what has not come then does not come
    if (::poll(&waiting, 1, kNeverMs) <= 0) return false;
    char buffer[16384];
    const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
    if (n > 0) read_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  int fd_;
  bool is_connected_ = false;
  std::string read_;
};

inline std::string GetText(std::string_view path) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", path);
}

inline std::string PostText(std::string_view path, std::string_view body) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
      "{}\r\n\r\n{}",
      path, body.size(), body);
}

}  // namespace nibble::server
