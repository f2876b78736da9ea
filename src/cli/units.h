// How the commands print quantities, and read sizes.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

namespace nibble::cli {

// "1.53 GB", "12.0 MB", "640 B": decimal units, three digits.
inline std::string FormatBytes(uint64_t n_bytes) {
  const auto value = static_cast<double>(n_bytes);
  if (n_bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", value / 1e9);
  if (n_bytes >= 1'000'000) return fmt::format("{:.1f} MB", value / 1e6);
  if (n_bytes >= 1'000) return fmt::format("{:.1f} kB", value / 1e3);
  return fmt::format("{} B", n_bytes);
}

// Bytes of "24GiB", "1.5 GB", "512MiB" or "1000000".
inline Result<uint64_t> ParseSize(std::string_view text) {
  double number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, text.data() + text.size());
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},      {"B", 1},      {"kB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  for (const auto& [name, n_bytes] : kUnits) {
    if (fault == std::errc() && unit == name && number >= 0 && number * n_bytes < 0x1p63) {
      return static_cast<uint64_t>(number * n_bytes);
    }
  }
  return Fail("expected a size like 24GiB or 1.5GB, found \"{}\"", text);
}

// "45.12 %". Only the whole is "100 %": a share just below it reads "99.99 %".
inline std::string FormatShare(uint64_t part, uint64_t whole) {
  if (part == whole) return "100 %";
  const double percent = 100 * static_cast<double>(part) / static_cast<double>(whole);
  return fmt::format("{:.2f} %", percent > 99.99 ? 99.99 : percent);
}

}  // namespace nibble::cli
