// What rounding costs, in numbers: how far the reader's values are from the source's.
//
// For encodings that are not exact (int8 per channel, int4 by amax / 7.5). Sums are of doubles and
// their order matters: callers add row by row, in order, so that a report depends neither on
// threads nor on how a tensor was cut. Tested by rounding_test.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/json.h"

namespace nibble::repack {

struct RoundingError {
  uint64_t n_values = 0;
  double sum_squares = 0;  // of the source's values
  double sum_squared_error = 0;
  double sum_error = 0;  // absolute values
  double max_error = 0;  // absolute value

  void Add(const RoundingError& other);

  double relative_error() const;         // Frobenius: |read - source| / |source|
  std::optional<double> snr_db() const;  // -20 log10 of it; nothing where there is no error
  double mean_error() const;             // absolute value
  Json ToJson() const;
};

// Of one row; read[i] is what the reader makes of source[i].
RoundingError Compare(std::span<const float> source, std::span<const float> read);

}  // namespace nibble::repack
