// Cuts a text that arrives in pieces at the first of some strings. Held back is exactly the tail
// that may still become one. Tested by stop_strings_test.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace nibble::server {

class StopStrings {
 public:
  // None is empty.
  explicit StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {}

  // The text that is certain with this piece. Nothing once found().
  std::string Push(std::string_view piece);
  // What is held back, at the end.
  std::string Flush();
  bool found() const { return found_; }

 private:
  std::vector<std::string> strings_;
  std::string held_;
  bool found_ = false;
};

}  // namespace nibble::server
