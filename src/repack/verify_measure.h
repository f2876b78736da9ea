// How far a packed matrix is from its source, whoever packed it: error, signal-to-noise ratio, and
// how many levels moved.
//
// A level is code times the sign of its scale, so that a negative scale with mirrored codes is the
// same level. The source's own levels are recovered here from its values alone: of the supposed
// peaks 1 .. 8 that explain a group exactly (verify_group.h), the one nearest to what was packed is
// taken, so that an export is not charged for an ambiguity. Groups off the grid have no levels and
// do not count. Tested by verify_measure_test.cc and tests/interop/test_measure.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/json.h"

namespace nibble::repack {

struct Measurement {
  uint64_t n_values = 0;
  double sum_squares = 0;        // of the source's values
  double sum_squared_error = 0;  // of the reader's values
  double max_error = 0;          // absolute value
  uint64_t n_levels = 0;         // values whose level (int4) or code (int8) is known
  uint64_t n_moved = 0;          // of them, those packed as another one

  void Merge(const Measurement& other);
  void AddValue(float source, float read);

  double relative_error() const;         // Frobenius
  std::optional<double> snr_db() const;  // nothing where there is no error
  Json ToJson() const;
};

inline constexpr int kLevelGroup = 32;

// Levels of the 32 bf16 values at `source` (64 bytes) that differ from `packed_levels` (-8 .. 8);
// nothing if the group lies on no 4-bit grid.
std::optional<int> CountMovedLevels(std::span<const std::byte, 64> source,
                                    std::span<const int8_t, kLevelGroup> packed_levels);

}  // namespace nibble::repack
