#include "server/line_writer.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <string>

namespace nibble::server {

void LineWriter::Write(std::string_view line) {
  const std::lock_guard lock(mutex_);
  std::string text = is_cut_ ? "\n" : "";
  if (is_losing_) {
    text +=
        fmt::format("lines of this log that were lost so far, as nobody read them: {}\n", n_lost_);
  }
  text.append(line).append("\n");
  const size_t n_written = WriteWhatFits(text, is_losing_ ? 0 : patience_ms_);
  is_losing_ = n_written < text.size();
  n_lost_ += is_losing_ ? 1 : 0;
  if (n_written > 0) is_cut_ = is_losing_ && text[n_written - 1] != '\n';
}

size_t LineWriter::WriteWhatFits(std::string_view text, int wait_ms) const {
  size_t n_written = 0;
  while (n_written < text.size()) {
    pollfd writable = {.fd = descriptor_, .events = POLLOUT, .revents = 0};
    if (::poll(&writable, 1, wait_ms) <= 0) break;
    const std::string_view piece = text.substr(n_written, PIPE_BUF);
    const ssize_t n = ::write(descriptor_, piece.data(), piece.size());
    if (n < 0 && errno != EINTR) break;
    n_written += static_cast<size_t>(std::max<ssize_t>(n, 0));
  }
  return n_written;
}

}  // namespace nibble::server
