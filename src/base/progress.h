// Progress of a long job on stderr: a bar on a terminal, one line per 10 % elsewhere, with rate and
// time left. Libraries report through ProgressFn; only cli/ owns a ProgressBar.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace nibble {

// Called with bytes done so far and in total; from one thread at a time.
using ProgressFn = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

class ProgressBar {
 public:
  // item: what is counted ("questions"); empty: bytes, shown with their rate.
  explicit ProgressBar(std::string label, std::string item = "");
  void Update(uint64_t done_bytes, uint64_t total_bytes);
  // Ends the bar's line on a terminal. Nothing to do elsewhere.
  void Finish();

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  std::string item_;
  bool is_terminal_;
  Clock::time_point start_;
  Clock::time_point last_drawn_;
  int last_tenth_ = 0;
  bool drawn_ = false;
};

}  // namespace nibble
