#include "repack/grid.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/check.h"
#include "base/float16.h"

// Why float32 compares are exact here. The ends of a value's rounding interval are midpoints of
// neighbouring bf16 values: 9 significant bits. Divided by codes k, m <= 8, two ends a/k and b/m
// that differ do so by at least one part in a * m < 2^13, whereas a float division is off by at
// most one part in 2^24: quotients keep their order, and equal rationals give equal quotients. A
// storable scale has at most 11 bits, so comparing it with a quotient is decided by one part in
// 2^15. Between any two different numbers compared lie hundreds of floats; therefore an end that
// does not belong to its interval (odd mantissa: ties go to even) is simply moved one float
// inwards, and everything becomes integer comparison of float bit patterns.
namespace nibble::repack {
namespace {

constexpr uint16_t kSignBit = 0x8000;
constexpr uint16_t kInfinityBits = 0x7f80;
// 2^-122: quotients of smaller magnitudes would be float subnormals, and below 2^-128 a bf16 value
// has so few bits that several codes can explain it; such groups go the slow way.
constexpr uint16_t kTinyBits = 5 << 7;

using Codes = std::array<int8_t, kGridGroup>;

uint16_t Magnitude(uint16_t bits) { return bits & static_cast<uint16_t>(~kSignBit); }
bool IsNegative(uint16_t bits) { return (bits & kSignBit) != 0; }

uint16_t StoreScale(float scale, DType dtype) {
  return dtype == DType::kF16 ? FloatToFp16(scale) : FloatToBf16(scale);
}

bool IsUsableScale(uint16_t scale_bits, DType dtype) {
  const float scale = ScaleToFloat(scale_bits, dtype);
  return scale != 0 && std::isfinite(scale);
}

// The ends of the interval of reals that round to a bf16 magnitude, as float bits: the midpoints to
// its neighbours, which are half way in bit patterns too (a binade is linear, subnormals included).
float LowerEnd(uint16_t magnitude) {
  return std::bit_cast<float>((static_cast<uint32_t>(magnitude) << 16) - 0x8000u);
}
float UpperEnd(uint16_t magnitude) {
  return std::bit_cast<float>((static_cast<uint32_t>(magnitude) << 16) + 0x8000u);
}

// One group laid out for the search, columns in order.
struct Values {
  std::array<float, kGridGroup> size;          // |w|
  std::array<float, kGridGroup> lower;         // of the rounding interval of |w|; 0 for w = 0
  std::array<float, kGridGroup> upper;         // likewise; infinity for w = 0
  std::array<int32_t, kGridGroup> is_open;     // 1: the ends do not belong to the interval
  std::array<int32_t, kGridGroup> code_limit;  // 8 for the sign of the largest value, else 7
  float peak = 0;
};

Values Prepare(std::span<const uint16_t, kGridGroup> bits, uint16_t peak_bits) {
  Values values;
  values.peak = Bf16ToFloat(Magnitude(peak_bits));
  for (int i = 0; i < kGridGroup; ++i) {
    const uint16_t magnitude = Magnitude(bits[i]);
    values.size[i] = Bf16ToFloat(magnitude);
    values.lower[i] = magnitude == 0 ? 0.0f : LowerEnd(magnitude);
    values.upper[i] = magnitude == 0 ? HUGE_VALF : UpperEnd(magnitude);
    values.is_open[i] = magnitude & 1;
    values.code_limit[i] = IsNegative(bits[i]) == IsNegative(peak_bits) ? 8 : 7;
  }
  return values;
}

// Sizes of the codes, and the scales that explain all values with them: those whose float bits lie
// in [lowest, highest].
struct Explanation {
  std::array<int32_t, kGridGroup> code_sizes;
  int32_t lowest = 0;
  int32_t highest = 0;
};

// Supposes that the largest value has the code `peak_code`. Each other value then has one possible
// code: scale and value are known to one part in 2^8 each, so their quotient, at most 8, is known
// to 1/16.
bool Explain(const Values& values, int peak_code, Explanation* found) {
  const float codes_per_unit = static_cast<float>(peak_code) / values.peak;
  int32_t lowest = 0;
  int32_t highest = std::bit_cast<int32_t>(HUGE_VALF);
  constexpr float kHalf = 0.5f;  // rounds to the nearest code: no quotient that counts is half way
  constexpr int kStride = 8;     // values between two looks at whether it is hopeless
  for (int begin = 0; begin < kGridGroup; begin += kStride) {
    int32_t over_limit = 0;
    for (int i = begin; i < begin + kStride; ++i) {
      const auto code_size = static_cast<int32_t>(values.size[i] * codes_per_unit + kHalf);
      found->code_sizes[i] = code_size;
      over_limit |= code_size > values.code_limit[i] ? 1 : 0;
      // A zero has code 0 and admits every scale. A value too small for code 1 is held against
      // code 1, whose scales are not near the peak's: that empties the interval, as it should.
      const auto divisor = static_cast<float>(std::max(code_size, 1));
      lowest =
          std::max(lowest, std::bit_cast<int32_t>(values.lower[i] / divisor) + values.is_open[i]);
      highest =
          std::min(highest, std::bit_cast<int32_t>(values.upper[i] / divisor) - values.is_open[i]);
    }
    if (lowest > highest || over_limit != 0) return false;
  }
  found->lowest = lowest;
  found->highest = highest;
  return true;
}

float Middle(const Explanation& found) {
  return std::bit_cast<float>(found.lowest) * 0.5f + std::bit_cast<float>(found.highest) * 0.5f;
}

// A scale of the dtype that explains everything, if there is one. Should any lie in the interval,
// then the one nearest the middle does, or, where that one is an open end, the neighbour across.
std::optional<uint16_t> ScaleInside(const Explanation& found, DType dtype) {
  const uint16_t nearest = StoreScale(Middle(found), dtype);
  for (const int step : {0, -1, 1}) {
    const auto candidate = static_cast<uint16_t>(nearest + step);
    const auto bits = std::bit_cast<int32_t>(ScaleToFloat(candidate, dtype));
    if (bits >= found.lowest && bits <= found.highest) return candidate;
  }
  return std::nullopt;
}

// As above, but one that bf16 holds as well, if possible: readers cast scales to the dtype they run
// in, and that one survives.
std::optional<uint16_t> ExactScale(const Explanation& found, DType dtype) {
  if (const auto bf16 = ScaleInside(found, DType::kBF16)) {
    const float scale = Bf16ToFloat(*bf16);
    const uint16_t scale_bits = StoreScale(scale, dtype);
    if (ScaleToFloat(scale_bits, dtype) == scale) return scale_bits;
  }
  return ScaleInside(found, dtype);
}

// Compares what the reader gets with the source and fills the counts.
void Measure(std::span<const uint16_t, kGridGroup> bits, DType dtype, GridGroup* group) {
  const float scale = ScaleToFloat(group->scale_bits, dtype);
  for (int i = 0; i < kGridGroup; ++i) {
    const uint16_t read = FloatToBf16(static_cast<float>(group->codes[i]) * scale);
    if (read == bits[i]) continue;
    if (Magnitude(read) == 0 && Magnitude(bits[i]) == 0) {
      ++group->n_zero_sign_lost;
      continue;
    }
    ++group->n_inexact;
    const int read_steps = IsNegative(read) ? -Magnitude(read) : Magnitude(read);
    const int source_steps = IsNegative(bits[i]) ? -Magnitude(bits[i]) : Magnitude(bits[i]);
    const auto ulp = static_cast<uint32_t>(std::abs(read_steps - source_steps));
    if (ulp > group->worst_ulp) {
      group->worst_ulp = ulp;
      group->column = static_cast<uint8_t>(i);
    }
  }
}

// Gives codes and scale their signs. `code_sizes`: of all columns; `scale_bits`: positive.
template <typename CodeSizes>
void Sign(std::span<const uint16_t, kGridGroup> bits, const CodeSizes& code_sizes,
          uint16_t scale_bits, GridGroup* group) {
  int zeros_balance = 0;  // zeros that are -0.0 minus those that are +0.0
  bool is_negative = false;
  bool is_forced = false;
  for (int i = 0; i < kGridGroup; ++i) {
    if (Magnitude(bits[i]) == 0) zeros_balance += IsNegative(bits[i]) ? 1 : -1;
    group->peak_code = std::max(group->peak_code, static_cast<uint8_t>(code_sizes[i]));
    if (code_sizes[i] == kMaxPeakCode) {
      is_forced = true;
      is_negative = !IsNegative(bits[i]);
    }
  }
  if (!is_forced) is_negative = zeros_balance > 0;
  group->scale_bits = scale_bits | (is_negative ? kSignBit : uint16_t{0});
  for (int i = 0; i < kGridGroup; ++i) {
    const auto code = static_cast<int8_t>(code_sizes[i]);
    group->codes[i] = IsNegative(bits[i]) == is_negative ? code : static_cast<int8_t>(-code);
  }
}

template <typename CodeSizes>
GridGroup Finish(std::span<const uint16_t, kGridGroup> bits, const CodeSizes& code_sizes,
                 uint16_t scale_bits, Outcome outcome, DType dtype) {
  GridGroup group;
  group.outcome = IsUsableScale(scale_bits, dtype) ? outcome : Outcome::kScaleOutOfRange;
  Sign(bits, code_sizes, scale_bits, &group);
  Measure(bits, dtype, &group);
  return group;
}

// Is every value explained by the scale numerator / denominator (or, if just_above, by scales
// infinitely little larger)? Exact: doubles hold the products of 9-bit ends and codes.
bool ExplainsAt(std::span<const uint16_t, kGridGroup> bits, double numerator, double denominator,
                bool just_above, Codes* code_sizes) {
  bool has_eight[2] = {false, false};  // a positive, a negative value of code size 8
  for (int i = 0; i < kGridGroup; ++i) {
    const uint16_t magnitude = Magnitude(bits[i]);
    int8_t code_size = 0;
    if (magnitude != 0) {
      const bool is_open = (magnitude & 1) != 0;
      const double lower = LowerEnd(magnitude) * denominator;
      const double upper = UpperEnd(magnitude) * denominator;
      for (code_size = 1; code_size <= kMaxPeakCode; ++code_size) {
        const double product = numerator * code_size;
        const bool above = product > lower || (product == lower && (just_above || !is_open));
        const bool below = product < upper || (product == upper && !just_above && !is_open);
        if (above && below) break;
      }
      if (code_size > kMaxPeakCode) return false;
      if (code_size == kMaxPeakCode) has_eight[IsNegative(bits[i]) ? 1 : 0] = true;
    }
    (*code_sizes)[i] = code_size;
  }
  return !(has_eight[0] && has_eight[1]);
}

// Groups that reach into bf16's subnormals, where codes are not unique: tries every bf16 scale up
// to the smallest value, then, for scales that no dtype can hold, the lower ends of all intervals
// (the set of scales that explain the group, if not empty, begins at one of them).
GridGroup RecoverTiny(std::span<const uint16_t, kGridGroup> bits, uint16_t smallest, DType dtype) {
  Codes code_sizes{};
  if (dtype == DType::kBF16) {
    for (uint16_t scale_bits = static_cast<uint16_t>(smallest + 1); scale_bits > 0; --scale_bits) {
      if (ExplainsAt(bits, Bf16ToFloat(scale_bits), 1, false, &code_sizes)) {
        return Finish(bits, code_sizes, scale_bits, Outcome::kExact, dtype);
      }
    }
  }
  for (const uint16_t value : bits) {
    const uint16_t magnitude = Magnitude(value);
    if (magnitude == 0) continue;
    for (int code_size = kMaxPeakCode; code_size >= 1; --code_size) {
      const double lower = LowerEnd(magnitude);
      if (!ExplainsAt(bits, lower, code_size, (magnitude & 1) != 0, &code_sizes)) continue;
      const uint16_t scale_bits = StoreScale(static_cast<float>(lower / code_size), dtype);
      return Finish(bits, code_sizes, scale_bits, Outcome::kNearest, dtype);
    }
  }
  GridGroup group;
  group.outcome = Outcome::kOffGrid;
  return group;
}

}  // namespace

float ScaleToFloat(uint16_t scale_bits, DType scale_dtype) {
  return scale_dtype == DType::kF16 ? Fp16ToFloat(scale_bits) : Bf16ToFloat(scale_bits);
}

GridGroup RecoverGroup(std::span<const uint16_t, kGridGroup> bits, DType scale_dtype) {
  CHECK(scale_dtype == DType::kF16 || scale_dtype == DType::kBF16);
  uint16_t peak_bits = bits[0];
  uint16_t smallest = kInfinityBits;  // of those that are not zero
  for (const uint16_t value : bits) {
    if (Magnitude(value) > Magnitude(peak_bits)) peak_bits = value;
    if (Magnitude(value) != 0) smallest = std::min(smallest, Magnitude(value));
  }
  if (Magnitude(peak_bits) >= kInfinityBits) {
    GridGroup group;
    group.outcome = Outcome::kNotFinite;
    while (Magnitude(bits[group.column]) < kInfinityBits) ++group.column;
    return group;
  }
  if (Magnitude(peak_bits) == 0) {
    return Finish(bits, Codes{}, StoreScale(1.0f, scale_dtype), Outcome::kZero, scale_dtype);
  }
  if (smallest < kTinyBits) return RecoverTiny(bits, smallest, scale_dtype);

  const Values values = Prepare(bits, peak_bits);
  std::optional<Explanation> first;
  for (int peak_code = kMaxPeakCode; peak_code >= 1; --peak_code) {
    Explanation found;
    if (!Explain(values, peak_code, &found)) continue;
    if (const auto scale_bits = ExactScale(found, scale_dtype)) {
      return Finish(bits, found.code_sizes, *scale_bits, Outcome::kExact, scale_dtype);
    }
    if (!first.has_value()) first = found;
  }
  if (first.has_value()) {
    return Finish(bits, first->code_sizes, StoreScale(Middle(*first), scale_dtype),
                  Outcome::kNearest, scale_dtype);
  }
  GridGroup group;
  group.outcome = Outcome::kOffGrid;
  return group;
}

GridGroup RoundGroup(std::span<const uint16_t, kGridGroup> bits, DType scale_dtype) {
  float peak = 0;
  for (const uint16_t value : bits) {
    if (std::fabs(Bf16ToFloat(value)) > std::fabs(peak)) peak = Bf16ToFloat(value);
  }
  GridGroup best;
  best.outcome = Outcome::kScaleOutOfRange;
  double least_error = HUGE_VAL;
  for (int peak_code = kMaxPeakCode; peak_code >= 1; --peak_code) {
    GridGroup group;
    group.outcome = Outcome::kOffGrid;
    const int signed_code = peak_code == kMaxPeakCode ? -peak_code : peak_code;
    group.scale_bits = StoreScale(peak / static_cast<float>(signed_code), scale_dtype);
    if (!IsUsableScale(group.scale_bits, scale_dtype)) continue;
    const double scale = ScaleToFloat(group.scale_bits, scale_dtype);
    double error = 0;
    for (int i = 0; i < kGridGroup; ++i) {
      const double value = Bf16ToFloat(bits[i]);
      const double code = std::clamp(std::nearbyint(value / scale), -8.0, 7.0);
      group.codes[i] = static_cast<int8_t>(code);
      group.peak_code = std::max(group.peak_code, static_cast<uint8_t>(std::fabs(code)));
      error += (value - code * scale) * (value - code * scale);
    }
    if (error < least_error) {
      least_error = error;
      best = group;
    }
  }
  if (best.outcome == Outcome::kOffGrid) Measure(bits, scale_dtype, &best);
  return best;
}

}  // namespace nibble::repack
