#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

namespace nibble {
namespace {

struct Unit {
  double bytes;
  std::string_view name;
};

// The unit in which the whole is at least 1, so that done and total are read in the same one.
Unit UnitFor(double n_bytes) {
  constexpr std::array kUnits = {Unit{1e9, "GB"}, Unit{1e6, "MB"}, Unit{1e3, "kB"}};
  for (const Unit& unit : kUnits) {
    if (n_bytes >= unit.bytes) return unit;
  }
  return {1, "B"};
}

// Three digits: "9.54", "12.3", "840".
std::string InUnit(double n_bytes, const Unit& unit) {
  const double value = n_bytes / unit.bytes;
  const int n_decimals = unit.bytes == 1 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return fmt::format("{:.{}f}", value, n_decimals);
}

// "41 s", "3 min 20 s", "2 h 05 min".
std::string Duration(double seconds) {
  const auto s = static_cast<int64_t>(std::ceil(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
}

}  // namespace

ProgressBar::ProgressBar(std::string label, std::string item, Clock now)
    : label_(std::move(label)),
      item_(std::move(item)),
      now_(std::move(now)),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      start_(now_()) {}

void ProgressBar::Update(uint64_t done_bytes, uint64_t total_bytes) {
  done_bytes = std::min(done_bytes, total_bytes);
  const auto now = now_();
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (seconds < 1) return;
  const auto done = static_cast<double>(done_bytes);
  const auto total = static_cast<double>(total_bytes);
  const double fraction = total_bytes == 0 ? 1.0 : done / total;
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

  const double rate = done / seconds;
  const std::string left = Duration(rate > 0 ? (total - done) / rate : 0);
  const Unit unit = UnitFor(total);
  const Unit rate_unit = UnitFor(rate);
  const std::string figures =
      item_.empty() ? fmt::format("{:3.0f} %  {} of {} {}  {} {}/s  {} left", fraction * 100,
                                  InUnit(done, unit), InUnit(total, unit), unit.name,
                                  InUnit(rate, rate_unit), rate_unit.name, left)
                    : fmt::format("{:3.0f} %  {} of {} {}  {} left", fraction * 100, done_bytes,
                                  total_bytes, item_, left);
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
