#include "repack/verify_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/float16.h"

namespace nibble::repack {
namespace {

// numerator / code, a bound of the scale. Ends of bf16 rounding intervals have 9 significant bits,
// so every product compared below is exact in double.
struct Bound {
  double numerator = 0;
  int code = 1;
  bool is_open = false;
};

// Sign of a - b.
int Compare(const Bound& a, const Bound& b) {
  const double left = a.numerator * b.code;
  const double right = b.numerator * a.code;
  return left < right ? -1 : (left > right ? 1 : 0);
}

struct Group {
  std::array<uint16_t, 32> source;  // bf16
  std::array<int, 32> codes;
  std::array<uint16_t, 32> read;  // bf16, what the reader computes
  uint16_t scale_bits;
  float scale;
};

Group Load(std::span<const std::byte, 64> source, std::span<const std::byte, 16> packed,
           const std::byte* scale, DType scale_dtype) {
  Group group;
  std::memcpy(group.source.data(), source.data(), source.size());
  std::memcpy(&group.scale_bits, scale, sizeof group.scale_bits);
  group.scale =
      scale_dtype == DType::kF16 ? Fp16ToFloat(group.scale_bits) : Bf16ToFloat(group.scale_bits);
  for (int i = 0; i < 32; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, packed.data() + static_cast<ptrdiff_t>(i / 8) * 4, sizeof word);
    group.codes[i] = static_cast<int>((word >> (4 * (i % 8))) & 15u) - 8;
    group.read[i] = FloatToBf16(static_cast<float>(group.codes[i]) * group.scale);
  }
  return group;
}

// Position of a bf16 pattern on the line of all bf16 values; both zeros at 0.
int Step(uint16_t bits) {
  const int size = bits & 0x7fff;
  return (bits & 0x8000) != 0 ? -size : size;
}

// The value half way between a bf16 magnitude and its neighbour `direction` (+1, -1) steps away.
// Beyond the largest finite value the spacing goes on, as rounding to infinity has it.
double HalfWay(uint16_t magnitude, int direction) {
  const int exponent = std::max(magnitude >> 7, 1) - 134;  // of one step: 2^exponent
  const double value = Bf16ToFloat(magnitude);
  const bool at_power_of_two = (magnitude & 0x7f) == 0 && (magnitude >> 7) > 1;
  const double step = std::ldexp(1.0, direction < 0 && at_power_of_two ? exponent - 1 : exponent);
  return value + direction * step / 2;
}

// The scales, in size, that give every value back with the stored codes; false if there are none.
bool Explain(const Group& group, Bound* low, Bound* high) {
  bool has_any = false;
  for (int i = 0; i < 32; ++i) {
    const uint16_t size = group.source[i] & 0x7fff;
    const int code = group.codes[i];
    if (size == 0 && code == 0) continue;
    const bool reads_negative = (code < 0) != std::signbit(group.scale);
    if (size == 0 || code == 0 || reads_negative != ((group.source[i] & 0x8000) != 0)) return false;
    const bool is_open = size % 2 == 1;  // a tie goes to the even neighbour
    const Bound lower{HalfWay(size, -1), std::abs(code), is_open};
    const Bound upper{HalfWay(size, 1), std::abs(code), is_open};
    const int against_low = has_any ? Compare(lower, *low) : 1;
    const int against_high = has_any ? Compare(upper, *high) : -1;
    if (against_low > 0 || (against_low == 0 && is_open)) *low = lower;
    if (against_high < 0 || (against_high == 0 && is_open)) *high = upper;
    has_any = true;
  }
  if (!has_any) return true;
  const int order = Compare(*low, *high);
  return order < 0 || (order == 0 && !low->is_open && !high->is_open);
}

double SizeOf(uint16_t scale_bits, DType dtype) {
  return std::fabs(dtype == DType::kF16 ? Fp16ToFloat(scale_bits) : Bf16ToFloat(scale_bits));
}

bool IsInside(double scale, const Bound& low, const Bound& high) {
  const int above = Compare({scale, 1, false}, low);
  const int below = Compare({scale, 1, false}, high);
  return (above > 0 || (above == 0 && !low.is_open)) &&
         (below < 0 || (below == 0 && !high.is_open));
}

// Rule 2 above, for a stored scale that does not give every value back.
bool IsNearest(const Group& group, DType dtype, const Bound& low, const Bound& high) {
  const double stored = SizeOf(group.scale_bits, dtype);
  for (const int step : {-1, 1}) {
    const double neighbour = SizeOf(static_cast<uint16_t>(group.scale_bits + step), dtype);
    const double edge = (stored + neighbour) / 2;
    if (std::isfinite(neighbour) && IsInside(neighbour, low, high)) return false;
    if (step < 0 && Compare({edge, 1, false}, high) > 0) return false;
    if (step > 0 && Compare({edge, 1, false}, low) < 0) return false;
  }
  return true;
}

}  // namespace

GroupProof ProveGroup(std::span<const std::byte, 64> source, std::span<const std::byte, 16> packed,
                      const std::byte* scale, DType scale_dtype) {
  const Group group = Load(source, packed, scale, scale_dtype);
  GroupProof proof{.scale_bits = group.scale_bits};
  for (int i = 0; i < 32; ++i) {
    if (group.read[i] == group.source[i]) {
      ++proof.n_bit_identical;
      continue;
    }
    const auto ulp = static_cast<uint32_t>(std::abs(Step(group.read[i]) - Step(group.source[i])));
    if (ulp == 0) ++proof.n_zero_sign_lost;
    if (ulp > proof.worst_ulp) {
      proof.worst_ulp = ulp;
      proof.column = i;
    }
  }
  if (!std::isfinite(group.scale) || group.scale == 0) {
    proof.is_right = false;
    return proof;
  }
  if (proof.worst_ulp == 0) return proof;  // the stored scale itself is the explanation
  Bound low;
  Bound high;
  proof.has_right_codes = Explain(group, &low, &high);
  proof.is_right = proof.has_right_codes && IsNearest(group, scale_dtype, low, high);
  return proof;
}

std::string DescribeFault(std::span<const std::byte, 64> source,
                          std::span<const std::byte, 16> packed, const std::byte* scale,
                          DType scale_dtype) {
  const Group group = Load(source, packed, scale, scale_dtype);
  const GroupProof proof = ProveGroup(source, packed, scale, scale_dtype);
  if (!std::isfinite(group.scale) || group.scale == 0) {
    return fmt::format("scale is {}, expected a finite one other than 0", group.scale);
  }
  const std::string values =
      fmt::format("code {} x scale {} reads as {}, expected {} ({} bf16 steps away)",
                  group.codes[proof.column], group.scale, Bf16ToFloat(group.read[proof.column]),
                  Bf16ToFloat(group.source[proof.column]), proof.worst_ulp);
  if (!proof.has_right_codes) return fmt::format("{}; no scale explains these codes", values);
  return fmt::format("{}; the codes are right, but a nearer {} scale exists", values,
                     Name(scale_dtype));
}

}  // namespace nibble::repack
