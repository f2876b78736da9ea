#include "formats/q4_0.h"

#include <array>
#include <span>

#include "base/float16.h"
#include "golden.h"

namespace nibble::formats {
namespace {

TEST(Q40, GgufPysBlocksHaveItsValuesAndPackAgain) {
  const auto blocks = Golden<std::byte>("q4_0_blocks");
  const auto values = Golden<float>("q4_0_values");
  ASSERT_EQ(blocks.size() / kQ40BlockBytes, 64u);
  ASSERT_EQ(values.size() / kQ40BlockSize, 64u);
  for (size_t i = 0; i < 64; ++i) {
    const auto block = std::span(blocks).subspan(i * kQ40BlockBytes).first<kQ40BlockBytes>();
    std::array<float, kQ40BlockSize> found;
    DequantizeQ40Block(block, found);
    EXPECT_EQ(std::memcmp(found.data(), &values[i * kQ40BlockSize], sizeof found), 0) << i;

    std::array<int8_t, kQ40BlockSize> codes;
    const float scale = UnpackQ40Block(block, codes);
    std::array<std::byte, kQ40BlockBytes> packed;
    PackQ40Block(codes, FloatToFp16(scale), packed);
    EXPECT_EQ(std::memcmp(packed.data(), block.data(), kQ40BlockBytes), 0) << i;
  }
}

TEST(Q40, CodesOfTheTwoHalvesShareBytes) {
  std::array<int8_t, kQ40BlockSize> codes;
  for (size_t i = 0; i < kQ40BlockSize; ++i) codes[i] = static_cast<int8_t>(i < 16 ? -8 : 7);
  codes[1] = -7;
  std::array<std::byte, kQ40BlockBytes> block;
  PackQ40Block(codes, 0x3c00, block);
  EXPECT_EQ(block[0], std::byte{0x00});
  EXPECT_EQ(block[1], std::byte{0x3c});
  EXPECT_EQ(block[2], std::byte{0xf0});
  EXPECT_EQ(block[3], std::byte{0xf1});
}

// A converter that takes |d| or flips signs needs code +8 here, which does not exist.
TEST(Q40, ANegativeScaleKeepsAPositiveExtremeExact) {
  std::array<int8_t, kQ40BlockSize> codes{};
  codes[5] = -8;
  codes[20] = 7;
  std::array<std::byte, kQ40BlockBytes> block;
  PackQ40Block(codes, FloatToFp16(-0.0625f), block);
  std::array<float, kQ40BlockSize> values;
  DequantizeQ40Block(block, values);
  EXPECT_EQ(values[5], 0.5f);
  EXPECT_EQ(values[20], -0.4375f);
}

}  // namespace
}  // namespace nibble::formats
