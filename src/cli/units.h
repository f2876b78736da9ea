// How the commands' tables print quantities.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace nibble::cli {

// "1.53 GB", "12.0 MB", "640 B": decimal units, three digits.
inline std::string FormatBytes(uint64_t n_bytes) {
  const auto value = static_cast<double>(n_bytes);
  if (n_bytes >= 1'000'000'000) return fmt::format("{:.2f} GB", value / 1e9);
  if (n_bytes >= 1'000'000) return fmt::format("{:.1f} MB", value / 1e6);
  if (n_bytes >= 1'000) return fmt::format("{:.1f} kB", value / 1e3);
  return fmt::format("{} B", n_bytes);
}

// "45.12 %". Only the whole is "100 %": a share just below it reads "99.99 %".
inline std::string FormatShare(uint64_t part, uint64_t whole) {
  if (part == whole) return "100 %";
  const double percent = 100 * static_cast<double>(part) / static_cast<double>(whole);
  return fmt::format("{:.2f} %", percent > 99.99 ? 99.99 : percent);
}

}  // namespace nibble::cli
