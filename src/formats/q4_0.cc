#include "formats/q4_0.h"

#include <array>
#include <cstring>

#include "base/float16.h"

namespace nibble::formats {
namespace {

constexpr size_t kHalf = kQ40BlockSize / 2;

}  // namespace

void PackQ40Block(std::span<const int8_t, kQ40BlockSize> codes, uint16_t scale_bits,
                  std::span<std::byte, kQ40BlockBytes> block) {
  std::memcpy(block.data(), &scale_bits, sizeof scale_bits);
  for (size_t i = 0; i < kHalf; ++i) {
    const int low = codes[i] + 8;
    const int high = codes[i + kHalf] + 8;
    block[sizeof scale_bits + i] = static_cast<std::byte>(low | (high << 4));
  }
}

float UnpackQ40Block(std::span<const std::byte, kQ40BlockBytes> block,
                     std::span<int8_t, kQ40BlockSize> codes) {
  uint16_t scale_bits = 0;
  std::memcpy(&scale_bits, block.data(), sizeof scale_bits);
  for (size_t i = 0; i < kHalf; ++i) {
    const int byte = std::to_integer<int>(block[sizeof scale_bits + i]);
    codes[i] = static_cast<int8_t>((byte & 15) - 8);
    codes[i + kHalf] = static_cast<int8_t>((byte >> 4) - 8);
  }
  return Fp16ToFloat(scale_bits);
}

void DequantizeQ40Block(std::span<const std::byte, kQ40BlockBytes> block,
                        std::span<float, kQ40BlockSize> values) {
  std::array<int8_t, kQ40BlockSize> codes{};
  const float scale = UnpackQ40Block(block, codes);
  for (size_t i = 0; i < kQ40BlockSize; ++i) values[i] = scale * static_cast<float>(codes[i]);
}

}  // namespace nibble::formats
