// Every instruction set that this machine has, against ProveGroup.
#include "repack/verify_batch.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/float16.h"
#include "base/instruction_set.h"
#include "repack/verify_group.h"

namespace nibble::repack {
namespace {

struct Groups {
  std::vector<std::byte> source;
  std::vector<std::byte> packed;
  std::vector<std::byte> scales;
};

// Any codes and any scale (zeros, subnormals, infinities and NaN among them), read back as they are
// or, in half of the groups, with one bit flipped somewhere.
Groups Draw(size_t n_groups, DType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  Groups groups{.source = std::vector<std::byte>(n_groups * 64),
                .packed = std::vector<std::byte>(n_groups * 16),
                .scales = std::vector<std::byte>(n_groups * 2)};
  for (size_t group = 0; group < n_groups; ++group) {
    const auto scale_bits = static_cast<uint16_t>(random());
    std::memcpy(&groups.scales[group * 2], &scale_bits, 2);
    const float scale = dtype == DType::kF16 ? Fp16ToFloat(scale_bits) : Bf16ToFloat(scale_bits);
    for (size_t i = 0; i < 32; ++i) {
      const uint32_t nibble = random() % 16;
      groups.packed[group * 16 + i / 2] |= static_cast<std::byte>(nibble << (4 * (i % 2)));
      const uint16_t value = FloatToBf16(static_cast<float>(static_cast<int>(nibble) - 8) * scale);
      std::memcpy(&groups.source[group * 64 + i * 2], &value, 2);
    }
    const auto flipped = static_cast<std::byte>(1u << (random() % 8));
    if (random() % 2 == 0) groups.source[group * 64 + random() % 64] ^= flipped;
  }
  return groups;
}

TEST(VerifyBatch, LeavesOverAllButGroupsReadBackBitForBit) {
  constexpr size_t kGroups = 60001;
  for (const InstructionSet set : AvailableInstructionSets()) {
    if (set == InstructionSet::kScalar) continue;
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      const Groups groups = Draw(kGroups, dtype, 1);
      std::vector<uint32_t> left_over(kGroups);
      uint64_t n_negative_scales = 0;
      left_over.resize(LeaveOutIdentical(set,
                                         {.source = groups.source.data(),
                                          .packed = groups.packed.data(),
                                          .scales = groups.scales.data(),
                                          .is_fp16 = dtype == DType::kF16,
                                          .n_groups = kGroups},
                                         left_over.data(), &n_negative_scales));
      std::vector<uint32_t> expected;
      uint64_t expected_negative = 0;
      for (size_t i = 0; i < kGroups; ++i) {
        const GroupProof proof = ProveGroup(std::span(groups.source).subspan(i * 64).first<64>(),
                                            std::span(groups.packed).subspan(i * 16).first<16>(),
                                            &groups.scales[i * 2], dtype);
        if (proof.n_bit_identical < 32 || !proof.is_right) {
          expected.push_back(static_cast<uint32_t>(i));
        } else {
          expected_negative += proof.scale_bits >> 15;
        }
      }
      EXPECT_EQ(left_over, expected) << Name(set);
      EXPECT_EQ(n_negative_scales, expected_negative) << Name(set);
      EXPECT_GT(expected.size(), kGroups * 4 / 10);
      EXPECT_LT(expected.size(), kGroups * 6 / 10);
    }
  }
}

TEST(VerifyBatch, ScalarLeavesEverythingOver) {
  std::array<uint32_t, 3> left_over{};
  uint64_t n_negative_scales = 0;
  EXPECT_EQ(LeaveOutIdentical(InstructionSet::kScalar, {.n_groups = 3}, left_over.data(),
                              &n_negative_scales),
            3);
  EXPECT_EQ(left_over, (std::array<uint32_t, 3>{0, 1, 2}));
}

}  // namespace
}  // namespace nibble::repack
