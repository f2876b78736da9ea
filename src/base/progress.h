// Progress of a long job on stderr: a bar on a terminal, one line per 10 % elsewhere, with rate and
// time left. A job of less than a second prints nothing. Libraries report through ProgressFn; only
// cli/ owns a ProgressBar. Tested by progress_test.cc.
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
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  // item: what is counted ("questions"); empty: bytes, shown with their rate. `now`: for tests.
  explicit ProgressBar(std::string label, std::string item = "",
                       Clock now = std::chrono::steady_clock::now);
  void Update(uint64_t done_bytes, uint64_t total_bytes);
  // Ends the bar's line on a terminal. Nothing to do elsewhere.
  void Finish();

 private:
  std::string label_;
  std::string item_;
  Clock now_;
  bool is_terminal_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_drawn_;
  int last_tenth_ = 0;
  bool drawn_ = false;
};

}  // namespace nibble
