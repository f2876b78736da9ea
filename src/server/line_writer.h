// Lines to a file, terminal, pipe or socket that somebody else may read: a reader that stalls costs
// lines, not service. What was lost is counted and said as soon as lines are taken again.
//
// A write of no more than PIPE_BUF bytes behind a poll that says "writable" does not block, since
// pipes and terminals say so only when that much fits; lines go in such pieces. Thread-safe.
// Tested by line_writer_test.cc.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>

namespace nibble::server {

class LineWriter {
 public:
  // `descriptor` is the caller's to close; SIGPIPE must be ignored where it may be a pipe. A line
  // waits for its reader that long (-1: for ever), and not at all if the line before was lost.
  explicit LineWriter(int descriptor, int patience_ms = 100)
      : descriptor_(descriptor), patience_ms_(patience_ms) {}

  // `line` without its end.
  void Write(std::string_view line);

 private:
  // How many bytes were taken.
  size_t WriteWhatFits(std::string_view text, int wait_ms) const;

  const int descriptor_;
  const int patience_ms_;
  std::mutex mutex_;
  int64_t n_lost_ = 0;
  bool is_losing_ = false;  // the last line, or a part of it
  bool is_cut_ = false;     // what was written last has no end
};

}  // namespace nibble::server
