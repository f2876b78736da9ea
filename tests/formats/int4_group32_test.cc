#include "formats/int4_group32.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "base/float16.h"

namespace nibble::formats {
namespace {

TEST(Int4Group32, NibblesStandInOrderLowestFirst) {
  // compressed-tensors' own example of the order: codes -8 .. -1 are the one word 0x76543210.
  std::array<int8_t, kGroupSize> codes{};
  for (int i = 0; i < kGroupSize; ++i) codes[i] = static_cast<int8_t>(i % 8 - 8);
  std::array<std::byte, kGroupPackedBytes> packed;
  PackGroup(codes, packed);
  for (size_t word_idx = 0; word_idx < 4; ++word_idx) {
    uint32_t word = 0;
    std::memcpy(&word, packed.data() + 4 * word_idx, sizeof word);
    EXPECT_EQ(word, 0x76543210u);
  }
}

TEST(Int4Group32, EveryPairOfCodesComesBack) {
  for (int a = -8; a <= 7; ++a) {
    for (int b = -8; b <= 7; ++b) {
      std::array<int8_t, kGroupSize> codes{};
      for (int i = 0; i < kGroupSize; ++i) codes[i] = static_cast<int8_t>(i % 3 == 0 ? a : b);
      std::array<std::byte, kGroupPackedBytes> packed;
      std::array<int8_t, kGroupSize> unpacked{};
      PackGroup(codes, packed);
      UnpackGroup(packed, unpacked);
      EXPECT_EQ(unpacked, codes);
    }
  }
}

TEST(Int4Group32, ScalesAreReadExactlyInEveryDtype) {
  const std::vector<uint16_t> halves = {0x3c00, 0xb555};
  EXPECT_EQ(ReadScale(std::as_bytes(std::span(halves)), DType::kF16, 0), 1.0f);
  EXPECT_EQ(ReadScale(std::as_bytes(std::span(halves)), DType::kF16, 1), Fp16ToFloat(0xb555));
  EXPECT_EQ(ReadScale(std::as_bytes(std::span(halves)), DType::kBF16, 1), Bf16ToFloat(0xb555));
  const std::vector<float> floats = {0.1f, -3.0f};
  EXPECT_EQ(ReadScale(std::as_bytes(std::span(floats)), DType::kF32, 1), -3.0f);
}

}  // namespace
}  // namespace nibble::formats
