#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace nibble {

ProgressBar::ProgressBar(std::string label, std::string item)
    : label_(std::move(label)),
      item_(std::move(item)),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()) {}

void ProgressBar::Update(uint64_t done_bytes, uint64_t total_bytes) {
  done_bytes = std::min(done_bytes, total_bytes);
  const auto now = Clock::now();
  const double fraction =
      total_bytes == 0 ? 1.0 : static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
  const int tenth = static_cast<int>(fraction * 10);
  if (is_terminal_) {
    if (drawn_ && done_bytes < total_bytes && now - last_drawn_ < std::chrono::milliseconds(100))
      return;
  } else {
    if (tenth == last_tenth_) return;
  }
  last_drawn_ = now;
  last_tenth_ = tenth;
  drawn_ = true;

  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done_bytes) / seconds : 0;
  const double left_s = rate > 0 ? static_cast<double>(total_bytes - done_bytes) / rate : 0;
  const std::string figures =
      item_.empty() ? fmt::format("{:3.0f} %  {:.2f} of {:.2f} GB  {:.0f} MB/s  {:.0f} s left",
                                  fraction * 100, static_cast<double>(done_bytes) / 1e9,
                                  static_cast<double>(total_bytes) / 1e9, rate / 1e6, left_s)
                    : fmt::format("{:3.0f} %  {} of {} {}  {:.0f} s left", fraction * 100,
                                  done_bytes, total_bytes, item_, left_s);
  if (is_terminal_) {
    constexpr int kBarCells = 30;
    const int filled = static_cast<int>(fraction * kBarCells);
    fmt::print(stderr, "\r{} [{:#<{}}{:.<{}}] {}\x1b[K", label_, "", filled, "", kBarCells - filled,
               figures);
    std::fflush(stderr);
  } else {
    fmt::print(stderr, "{} {}\n", label_, figures);
  }
}

void ProgressBar::Finish() {
  if (is_terminal_ && drawn_) fmt::print(stderr, "\n");
}

}  // namespace nibble
