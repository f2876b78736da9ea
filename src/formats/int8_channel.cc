#include "formats/int8_channel.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/float16.h"

namespace nibble::formats {
namespace {

constexpr float kMaxCode = 127.0f;

// Half to even, for |value| < 2^22: the sum has no bits below 1. Compilers turn it into vectors,
// which they cannot do with nearbyint before SSE4.1.
float RoundHalfToEven(float value) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  return (value + kShift) - kShift;
}

}  // namespace

float Int8ChannelScale(std::span<const float> row, DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  float largest = 0;
  for (const float value : row) largest = std::max(largest, std::fabs(value));
  const float exact = largest / kMaxCode;
  const float scale = dtype == DType::kBF16 ? RoundToBf16(exact) : exact;
  return scale == 0 ? 1.0f : scale;
}

void QuantizeInt8Channel(std::span<const float> row, float scale, std::span<int8_t> codes) {
  CHECK(row.size() == codes.size());
  for (size_t i = 0; i < row.size(); ++i) {
    // A bf16 scale may be 1/512 too small, which is 127.25: no code leaves its range. The clamp is
    // for subnormal scales, whose rounding is coarser.
    const float code = RoundHalfToEven(std::clamp(row[i] / scale, -kMaxCode, kMaxCode));
    codes[i] = static_cast<int8_t>(code);
  }
}

}  // namespace nibble::formats
