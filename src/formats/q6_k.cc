#include "formats/q6_k.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/float16.h"

namespace nibble::formats {
namespace {

constexpr size_t kGroup = kQ6KGroupSize;
constexpr size_t kGroups = kQ6KGroups;
constexpr size_t kUpperAt = 128;             // after the low nibbles
constexpr size_t kScalesAt = kUpperAt + 64;  // after the upper bits
constexpr size_t kScaleAt = kScalesAt + kGroups;

constexpr float kMinCode = -32;
constexpr float kMaxCode = 31;
constexpr float kMaxScale = 127;
// A group's extreme becomes a code of at least this size. From 24 to 32 every level 1 .. 8 of a
// 16-level grid has a multiple, so that some step divides the grid's.
constexpr float kLeastPeak = 24;
constexpr float kMostPeak = 32.5f;  // beyond, -32 is more than half a step away

// Where value i of a super-block lies.
struct Place {
  size_t low_byte;
  size_t low_shift;
  size_t upper_byte;
  size_t upper_shift;
};

constexpr Place PlaceOf(size_t i) {
  const size_t half = i / 128;
  const size_t k = i % 128 / 32;
  const size_t l = i % 32;
  return {64 * half + l + 32 * (k % 2), 4 * (k / 2), kUpperAt + 32 * half + l, 2 * k};
}

// Nearest, ties to even, for |value| < 2^22: adding 1.5 * 2^23 leaves no bits for a fraction.
// Unlike nearbyint it becomes vector instructions on every x86.
float Round(float value) {
  constexpr float kNoFraction = 0x1.8p23f;
  return (value + kNoFraction) - kNoFraction;
}

using Group = std::span<const float, kGroup>;

// The codes of a group for one step, and the sum of squared errors.
float RoundGroup(Group values, float step, std::array<float, kGroup>& codes) {
  const float inverse = 1 / step;
  std::array<float, kGroup> squares;
  for (size_t i = 0; i < kGroup; ++i) {
    codes[i] = std::min(std::max(Round(values[i] * inverse), kMinCode), kMaxCode);
    const float error = values[i] - step * codes[i];
    squares[i] = error * error;
  }
  for (size_t width = kGroup / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) squares[i] += squares[i + width];
  }
  return squares[0];
}

// The value of largest magnitude.
float Extreme(std::span<const float> values) {
  return *std::ranges::max_element(values, {}, [](float value) { return std::fabs(value); });
}

// The best int8 scale of a group; fills its codes.
int ChooseScale(Group values, float super_scale, std::array<float, kGroup>& codes) {
  const float extreme = Extreme(values);
  codes.fill(0);
  if (extreme == 0) return 0;
  const float peak = std::fabs(extreme);
  const float sign = extreme > 0 ? -1.0f : 1.0f;  // the extreme's code is negative: -32 exists
  const float least = std::clamp(std::ceil(peak / (super_scale * kMostPeak)), 1.0f, kMaxScale);
  const float most = std::clamp(std::floor(peak / (super_scale * kLeastPeak)), least, kMaxScale);
  float best_scale = 0;
  float best_error = 0;
  std::array<float, kGroup> candidate;
  for (float scale = least; scale <= most; ++scale) {
    const float error = RoundGroup(values, super_scale * (sign * scale), candidate);
    if (best_scale != 0 && error >= best_error) continue;
    best_scale = sign * scale;
    best_error = error;
    codes = candidate;
  }
  return static_cast<int>(best_scale);
}

// The least fp16 > 0 that is not below `value`, so that no group's extreme is clipped.
uint16_t RoundUpToFp16(float value) {
  const uint16_t bits = FloatToFp16(value);
  return static_cast<uint16_t>(bits == 0 || Fp16ToFloat(bits) < value ? bits + 1 : bits);
}

}  // namespace

void UnpackQ6KBlock(std::span<const std::byte, kQ6KBlockBytes> block,
                    std::span<int8_t, kQ6KBlockSize> codes, std::span<float, kQ6KGroups> steps) {
  uint16_t super_bits = 0;
  std::memcpy(&super_bits, &block[kScaleAt], sizeof super_bits);
  const float super_scale = Fp16ToFloat(super_bits);
  for (size_t i = 0; i < kGroups; ++i) {
    steps[i] = super_scale * static_cast<float>(static_cast<int8_t>(block[kScalesAt + i]));
  }
  for (size_t i = 0; i < kQ6KBlockSize; ++i) {
    const Place place = PlaceOf(i);
    const int low = std::to_integer<int>(block[place.low_byte]) >> place.low_shift & 15;
    const int upper = std::to_integer<int>(block[place.upper_byte]) >> place.upper_shift & 3;
    codes[i] = static_cast<int8_t>((low | upper << 4) - 32);
  }
}

void DequantizeQ6KBlock(std::span<const std::byte, kQ6KBlockBytes> block,
                        std::span<float, kQ6KBlockSize> values) {
  std::array<int8_t, kQ6KBlockSize> codes;
  std::array<float, kGroups> steps;
  UnpackQ6KBlock(block, codes, steps);
  for (size_t i = 0; i < kQ6KBlockSize; ++i) {
    values[i] = steps[i / kGroup] * static_cast<float>(codes[i]);
  }
}

bool QuantizeQ6KBlock(std::span<const float, kQ6KBlockSize> values,
                      std::span<std::byte, kQ6KBlockBytes> block) {
  for (const float value : values) {
    if (!std::isfinite(value)) return false;
  }
  const float peak = std::fabs(Extreme(values));
  const uint16_t super_bits = peak == 0 ? 0 : RoundUpToFp16(peak / (kMostPeak * kMaxScale));
  const float super_scale = Fp16ToFloat(super_bits);
  if (!std::isfinite(super_scale)) return false;

  std::ranges::fill(block, std::byte{0});
  std::memcpy(&block[kScaleAt], &super_bits, sizeof super_bits);
  for (size_t group = 0; group < kGroups; ++group) {
    std::array<float, kGroup> codes;
    const int scale =
        ChooseScale(values.subspan(group * kGroup).first<kGroup>(), super_scale, codes);
    block[kScalesAt + group] = static_cast<std::byte>(scale);
    for (size_t i = 0; i < kGroup; ++i) {
      const Place place = PlaceOf(group * kGroup + i);
      const int stored = static_cast<int>(codes[i]) + 32;
      block[place.low_byte] |= static_cast<std::byte>((stored & 15) << place.low_shift);
      block[place.upper_byte] |= static_cast<std::byte>(stored >> 4 << place.upper_shift);
    }
  }
  return true;
}

}  // namespace nibble::formats
