#include "repack/rounding.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace nibble::repack {

void RoundingError::Add(const RoundingError& other) {
  n_values += other.n_values;
  sum_squares += other.sum_squares;
  sum_squared_error += other.sum_squared_error;
  sum_error += other.sum_error;
  max_error = std::max(max_error, other.max_error);
}

double RoundingError::relative_error() const {
  return sum_squares > 0 ? std::sqrt(sum_squared_error / sum_squares) : 0;
}

std::optional<double> RoundingError::snr_db() const {
  if (sum_squared_error == 0) return std::nullopt;
  return 10 * std::log10(sum_squares / sum_squared_error);
}

double RoundingError::mean_error() const {
  return n_values > 0 ? sum_error / static_cast<double>(n_values) : 0;
}

Json RoundingError::ToJson() const {
  const std::optional<double> snr = snr_db();
  return {{"values", n_values},
          {"relative_error", relative_error()},
          {"snr_db", snr.has_value() ? Json(*snr) : Json()},
          {"max_error", max_error},
          {"mean_error", mean_error()},
          {"sum_squares", sum_squares},
          {"sum_squared_error", sum_squared_error}};
}

RoundingError Compare(std::span<const float> source, std::span<const float> read) {
  CHECK(source.size() == read.size());
  // Value i goes into lane i % 8: a fixed order that compilers turn into vector sums.
  constexpr size_t kLanes = 8;
  std::array<double, kLanes> squares{};
  std::array<double, kLanes> squared_errors{};
  std::array<double, kLanes> errors{};
  std::array<double, kLanes> largest{};
  const auto add = [&](size_t i, size_t lane) {
    const double value = source[i];
    const double error = std::fabs(static_cast<double>(read[i]) - value);
    squares[lane] += value * value;
    squared_errors[lane] += error * error;
    errors[lane] += error;
    largest[lane] = std::max(largest[lane], error);
  };
  size_t i = 0;
  for (; i + kLanes <= source.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (; i < source.size(); ++i) add(i, i % kLanes);
  RoundingError sum{.n_values = source.size()};
  for (size_t lane = 0; lane < kLanes; ++lane) {
    sum.sum_squares += squares[lane];
    sum.sum_squared_error += squared_errors[lane];
    sum.sum_error += errors[lane];
    sum.max_error = std::max(sum.max_error, largest[lane]);
  }
  return sum;
}

}  // namespace nibble::repack
