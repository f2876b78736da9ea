// Time that something took, by a clock that never goes back. Tested through what is timed with it.
#pragma once

#include <chrono>

namespace nibble {

// Runs from the moment that it is made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace nibble
