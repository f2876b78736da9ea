// Every instruction set that this machine has, against ProveGroup.
#include "repack/verify_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  DType dtype = DType::kF16;

  size_t size() const { return scales.size() / 2; }
  ProofBatch Batch() const {
    return {.source = source.data(),
            .packed = packed.data(),
            .scales = scales.data(),
            .is_fp16 = dtype == DType::kF16,
            .n_groups = static_cast<int64_t>(size())};
  }
  GroupProof Prove(size_t i) const {
    return ProveGroup(std::span(source).subspan(i * 64).first<64>(),
                      std::span(packed).subspan(i * 16).first<16>(), &scales[i * 2], dtype);
  }
};

// Any codes and any scale (zeros, subnormals, infinities and NaN among them). Every fourth group is
// read back as it is, the next has one bit flipped somewhere, the third has zeros of the other
// sign, and the fourth comes from a scale that the stored one, or not quite, is rounded from.
Groups Draw(size_t n_groups, DType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> rounding(-0x1p-8f, 0x1p-8f);
  Groups groups{.source = std::vector<std::byte>(n_groups * 64),
                .packed = std::vector<std::byte>(n_groups * 16),
                .scales = std::vector<std::byte>(n_groups * 2),
                .dtype = dtype};
  for (size_t group = 0; group < n_groups; ++group) {
    const auto scale_bits = static_cast<uint16_t>(random());
    std::memcpy(&groups.scales[group * 2], &scale_bits, 2);
    float scale = dtype == DType::kF16 ? Fp16ToFloat(scale_bits) : Bf16ToFloat(scale_bits);
    if (group % 4 == 3) scale += scale * rounding(random);
    for (size_t i = 0; i < 32; ++i) {
      const uint32_t nibble = random() % 16;
      groups.packed[group * 16 + i / 2] |= static_cast<std::byte>(nibble << (4 * (i % 2)));
      uint16_t value = FloatToBf16(static_cast<float>(static_cast<int>(nibble) - 8) * scale);
      if (group % 4 == 2 && nibble == 8) value ^= 0x8000;
      std::memcpy(&groups.source[group * 64 + i * 2], &value, 2);
    }
    const auto flipped = static_cast<std::byte>(1u << (random() % 8));
    if (group % 4 == 1) groups.source[group * 64 + random() % 64] ^= flipped;
  }
  return groups;
}

// What is left over although it is right: scales near the ends of their range.
bool IsUsual(float scale, DType dtype) {
  const float size = std::fabs(scale);
  return dtype == DType::kF16 ? size > 0x1p-24f && size < 65504
                              : size >= 0x1p-40f && size < 0x1p40f;
}

struct Expected {
  std::vector<uint32_t> left_over;
  ProofSums sums;
};

Expected ProveAll(const Groups& groups) {
  Expected expected;
  for (size_t i = 0; i < groups.size(); ++i) {
    const GroupProof proof = groups.Prove(i);
    const float scale =
        groups.dtype == DType::kF16 ? Fp16ToFloat(proof.scale_bits) : Bf16ToFloat(proof.scale_bits);
    if (!proof.is_right || proof.worst_ulp > 1 || !IsUsual(scale, groups.dtype)) {
      expected.left_over.push_back(static_cast<uint32_t>(i));
      continue;
    }
    ProofSums& sums = expected.sums;
    ++sums.n_groups;
    sums.n_negative_scales += proof.scale_bits >> 15;
    sums.n_bit_identical += static_cast<uint64_t>(proof.n_bit_identical);
    sums.n_zero_sign_lost += static_cast<uint64_t>(proof.n_zero_sign_lost);
    sums.worst_ulp = std::max(sums.worst_ulp, proof.worst_ulp);
    for (size_t k = 0; k < 32; ++k) {
      uint16_t bits = 0;
      std::memcpy(&bits, &groups.source[i * 64 + k * 2], 2);
      const double value = Bf16ToFloat(bits);
      const int nibble = std::to_integer<int>(groups.packed[i * 16 + k / 2]) >> (4 * (k % 2)) & 15;
      const double error = RoundToBf16(static_cast<float>(nibble - 8) * scale) - value;
      sums.sum_squares += value * value;
      sums.sum_squared_error += error * error;
      sums.max_error = std::max(sums.max_error, static_cast<float>(std::fabs(error)));
    }
  }
  return expected;
}

TEST(VerifyBatch, ProvesWhatProveGroupCallsRightAndAddsUpTheSame) {
  constexpr size_t kGroups = 60001;
  for (const InstructionSet set : AvailableInstructionSets()) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      const Groups groups = Draw(kGroups, dtype, 1);
      const Expected expected = ProveAll(groups);
      EXPECT_GT(expected.sums.n_zero_sign_lost, kGroups / 8);
      EXPECT_GT(expected.sums.n_groups * 32 - expected.sums.n_bit_identical, kGroups / 2);
      std::vector<uint32_t> left_over(kGroups);
      ProofSums sums;
      left_over.resize(ProveBatch(set, groups.Batch(), left_over.data(), &sums));
      if (set == InstructionSet::kScalar) {
        EXPECT_EQ(left_over.size(), kGroups);
        continue;
      }
      EXPECT_EQ(left_over, expected.left_over) << Name(set);
      EXPECT_EQ(sums.n_groups, expected.sums.n_groups) << Name(set);
      EXPECT_EQ(sums.n_negative_scales, expected.sums.n_negative_scales) << Name(set);
      EXPECT_EQ(sums.n_bit_identical, expected.sums.n_bit_identical) << Name(set);
      EXPECT_EQ(sums.n_zero_sign_lost, expected.sums.n_zero_sign_lost) << Name(set);
      EXPECT_EQ(sums.worst_ulp, 1u) << Name(set);
      EXPECT_EQ(sums.max_error, expected.sums.max_error) << Name(set);
      EXPECT_NEAR(sums.sum_squares / expected.sums.sum_squares, 1, 1e-6);
      EXPECT_NEAR(sums.sum_squared_error / expected.sums.sum_squared_error, 1, 1e-6);
    }
  }
}

}  // namespace
}  // namespace nibble::repack
