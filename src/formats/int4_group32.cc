#include "formats/int4_group32.h"

#include <cstring>

#include "base/check.h"
#include "base/float16.h"

namespace nibble::formats {

void PackGroup(std::span<const int8_t, kGroupSize> codes,
               std::span<std::byte, kGroupPackedBytes> packed) {
  for (size_t i = 0; i < kGroupPackedBytes; ++i) {
    const int low = codes[2 * i] + 8;
    const int high = codes[2 * i + 1] + 8;
    packed[i] = static_cast<std::byte>(low | (high << 4));
  }
}

void UnpackGroup(std::span<const std::byte, kGroupPackedBytes> packed,
                 std::span<int8_t, kGroupSize> codes) {
  for (size_t i = 0; i < kGroupPackedBytes; ++i) {
    const int byte = std::to_integer<int>(packed[i]);
    codes[2 * i] = static_cast<int8_t>((byte & 15) - 8);
    codes[2 * i + 1] = static_cast<int8_t>((byte >> 4) - 8);
  }
}

float ReadScale(std::span<const std::byte> scales, DType dtype, int64_t index) {
  const std::byte* at = scales.data() + index * SizeBytes(dtype);
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  CHECK(dtype == DType::kBF16 || dtype == DType::kF16);
  return dtype == DType::kBF16 ? Bf16ToFloat(bits) : Fp16ToFloat(bits);
}

}  // namespace nibble::formats
