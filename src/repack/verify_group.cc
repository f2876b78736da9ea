#include "repack/verify_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/float16.h"

namespace nibble::repack {
namespace {

// Scales that explain a group, in size, times 840, which every code 1 .. 8 divides. An end that
// does not belong is moved inwards by 2^-30 of itself: far less than any two different numbers
// compared here lie apart, as they are 9-bit ends times 840 / code and 840 times scales of up to 12
// bits. All of it is exact in double.
struct Range {
  double low = 0;
  double high = HUGE_VAL;
};

constexpr uint32_t kInfinity = 0x7f80;  // as bf16 bits
constexpr double kMultiple = 840;
constexpr double kInwards = 0x1p-30;

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
  for (size_t i = 0; i < packed.size(); ++i) {
    const int pair = std::to_integer<int>(packed[i]);
    group.codes[2 * i] = (pair & 15) - 8;
    group.codes[2 * i + 1] = (pair >> 4) - 8;
  }
  for (int i = 0; i < 32; ++i) {
    group.read[i] = FloatToBf16(static_cast<float>(group.codes[i]) * group.scale);
  }
  return group;
}

// Position of a bf16 pattern on the line of all bf16 values; both zeros at 0.
int Step(uint16_t bits) {
  const int size = bits & 0x7fff;
  return (bits & 0x8000) != 0 ? -size : size;
}

// The scales that give every value back with the stored codes; false if there are none.
bool Explain(const Group& group, Range* scales) {
  constexpr std::array<double, 9> kPerCode = {0, 840, 420, 280, 210, 168, 140, 120, 105};
  for (int i = 0; i < 32; ++i) {
    const uint32_t size = group.source[i] & 0x7fffu;
    const int code = group.codes[i];
    if (size == 0 && code == 0) continue;
    const bool reads_negative = (code < 0) != std::signbit(group.scale);
    if (size == 0 || code == 0 || reads_negative != ((group.source[i] & 0x8000) != 0)) return false;
    if (size >= kInfinity) return false;
    // Half way to the neighbours, also in bit patterns; a tie goes to the even one.
    const double lower = std::bit_cast<float>((size << 16) - 0x8000u);
    const double upper = std::bit_cast<float>((size << 16) + 0x8000u);
    const double inwards = size % 2 == 1 ? kInwards : 0;
    const double per_code = kPerCode[static_cast<size_t>(std::abs(code))];
    scales->low = std::max(scales->low, (lower + lower * inwards) * per_code);
    scales->high = std::min(scales->high, (upper - upper * inwards) * per_code);
  }
  return scales->low <= scales->high;
}

double SizeOf(uint16_t scale_bits, DType dtype) {
  return std::fabs(dtype == DType::kF16 ? Fp16ToFloat(scale_bits) : Bf16ToFloat(scale_bits));
}

// Rule 2 of the header, for a stored scale that does not give every value back.
bool IsNearest(const Group& group, DType dtype, const Range& scales) {
  const double stored = SizeOf(group.scale_bits, dtype);
  for (const int step : {-1, 1}) {
    const double neighbour = SizeOf(static_cast<uint16_t>(group.scale_bits + step), dtype);
    const double multiple = neighbour * kMultiple;
    if (std::isfinite(neighbour) && multiple >= scales.low && multiple <= scales.high) return false;
    const double edge = (stored + neighbour) / 2 * kMultiple;
    if (step < 0 && edge > scales.high) return false;
    if (step > 0 && edge < scales.low) return false;
  }
  return true;
}

}  // namespace

GroupProof ProveGroup(std::span<const std::byte, 64> source, std::span<const std::byte, 16> packed,
                      const std::byte* scale, DType scale_dtype) {
  const Group group = Load(source, packed, scale, scale_dtype);
  GroupProof proof{.scale_bits = group.scale_bits};
  int n_equal = 0;
  std::array<int, 32> ulps;
  for (int i = 0; i < 32; ++i) {  // no branches: compilers make vectors of it
    ulps[i] = std::abs(Step(group.read[i]) - Step(group.source[i]));
    n_equal += ulps[i] == 0 ? 1 : 0;
    proof.n_bit_identical += group.read[i] == group.source[i] ? 1 : 0;
  }
  proof.n_zero_sign_lost = n_equal - proof.n_bit_identical;
  if (n_equal < 32) {
    const auto worst = std::ranges::max_element(ulps);
    proof.worst_ulp = static_cast<uint32_t>(*worst);
    proof.column = static_cast<int>(worst - ulps.begin());
  }
  if (!std::isfinite(group.scale) || group.scale == 0) {
    proof.is_right = false;
    return proof;
  }
  if (proof.worst_ulp == 0) return proof;  // the stored scale itself is the explanation
  Range scales;
  proof.has_right_codes = Explain(group, &scales);
  proof.is_right = proof.has_right_codes && IsNearest(group, scale_dtype, scales);
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
