// The 16-level grid behind QAT weights: 32 bf16 values turned back into codes and a scale.
//
// A QAT export holds w[i] = bf16(d * q[i]), q in -8 .. 7, one real d per group of 32 along the
// input dimension. Neither d nor the largest code is known, and w was rounded. For a supposed code
// of the largest value, every w[i] admits an interval of scales that round back to it; if all 32
// meet, the codes are found, and any storable scale in the intersection gives every value back.
// docs/GRID.md tells it at length, with the proof that the arithmetic below is exact.
//
// The reader's rule throughout: value = bf16(float(code) * float(scale)). For an fp16 scale that is
// a float32 product rounded to bf16; for a bf16 scale it is also what a bf16 run computes.
// Pure functions, thread-safe. Tested by grid_test.cc against an exhaustive oracle.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace nibble::repack {

inline constexpr int kGridGroup = 32;
inline constexpr int kMaxPeakCode = 8;

enum class Outcome : uint8_t {
  kZero,             // all values are +-0: codes 0, scale 1 (-1 where most zeros are -0.0)
  kExact,            // the reader gets every value back (zeros perhaps with the other sign)
  kNearest,          // codes exact, but no scale of that dtype gives every value back: the nearest
  kOffGrid,          // no scale explains the values; codes and scale are not set
  kNotFinite,        // `column` holds a NaN or an infinity; codes and scale are not set
  kScaleOutOfRange,  // on the grid, but the scale would be 0 or infinite in that dtype
};

struct GridGroup {
  Outcome outcome = Outcome::kZero;
  uint8_t peak_code = 0;         // size of the largest code, 1 .. 8; 0 in an all-zero group
  uint8_t n_inexact = 0;         // values that the reader does not get back
  uint8_t n_zero_sign_lost = 0;  // zeros read back as the other zero: equal, not bit-identical
  uint8_t column = 0;            // kNotFinite: the first; RoundGroup: the one with worst_ulp
  uint16_t scale_bits = 0;       // in the dtype asked for; may be negative
  uint32_t worst_ulp = 0;        // largest distance to a source value, in bf16 steps
  std::array<int8_t, kGridGroup> codes{};
};

// Codes and scale of one group; `scale_dtype` is kF16 or kBF16.
//
// Of several supposed peak codes that explain the group, the largest one with an exact storable
// scale is taken, else the largest; of several exact scales, the one nearest the interval's middle
// among those that bf16 can hold, if any, else among all. The scale's sign is forced when a code of
// size 8 occurs (there is no +8), otherwise it is the one that gives more zeros their own sign
// back, positive if that is a draw.
GridGroup RecoverGroup(std::span<const uint16_t, kGridGroup> values, DType scale_dtype);

// The best rounding of a group that is off the grid: of peak / -8, peak / 7 .. peak / 1 the scale
// with the least squared error. Values must be finite. outcome is kOffGrid (or kScaleOutOfRange),
// with codes, scale, n_inexact, worst_ulp and column set.
GridGroup RoundGroup(std::span<const uint16_t, kGridGroup> values, DType scale_dtype);

// A scale's bit pattern as float (exact).
float ScaleToFloat(uint16_t scale_bits, DType scale_dtype);

}  // namespace nibble::repack
