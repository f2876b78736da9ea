#include "server/stop_strings.h"

#include <algorithm>
#include <utility>

namespace nibble::server {

std::string StopStrings::Push(std::string_view piece) {
  if (found_) return "";
  held_ += piece;
  size_t first = std::string::npos;
  size_t begin_of_tail = held_.size();
  for (const std::string& stop : strings_) {
    first = std::min(first, held_.find(stop));
    // The longest end of the text that begins this string.
    size_t begin = held_.size() - std::min(held_.size(), stop.size() - 1);
    while (!stop.starts_with(std::string_view(held_).substr(begin))) ++begin;
    begin_of_tail = std::min(begin_of_tail, begin);
  }
  found_ = first != std::string::npos;
  std::string certain = held_.substr(0, found_ ? first : begin_of_tail);
  held_.erase(0, found_ ? held_.size() : begin_of_tail);
  return certain;
}

std::string StopStrings::Flush() { return std::exchange(held_, std::string()); }

}  // namespace nibble::server
