// Recovery and proof are two programs for one question; here each is the other's test.
#include "repack/verify_group.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "base/float16.h"
#include "formats/int4_group32.h"
#include "repack/grid.h"

namespace nibble::repack {
namespace {

struct Stored {
  std::array<uint16_t, 32> source;
  std::array<std::byte, 16> packed;
  uint16_t scale_bits = 0;

  GroupProof Prove(DType dtype) const {
    return ProveGroup(std::as_bytes(std::span(source)).first<64>(), packed,
                      reinterpret_cast<const std::byte*>(&scale_bits), dtype);
  }
};

Stored Store(const std::array<uint16_t, 32>& source, const GridGroup& group) {
  Stored stored{.source = source, .packed = {}, .scale_bits = group.scale_bits};
  formats::PackGroup(group.codes, stored.packed);
  return stored;
}

// bf16(d * q) with a float32 d, so that about half of the groups have no exact bf16 scale.
std::array<uint16_t, 32> Draw(std::mt19937& random, int peak_code) {
  std::uniform_real_distribution<float> exponent(-12, 4);
  const float scale = std::exp2(exponent(random)) * (random() % 2 == 0 ? 1.0f : -1.0f);
  std::array<uint16_t, 32> values;
  for (uint16_t& value : values) {
    const int code = static_cast<int>(random() % (2 * peak_code)) - peak_code;
    value = FloatToBf16(static_cast<float>(code) * scale);
  }
  return values;
}

TEST(VerifyGroup, AcceptsWhateverRecoveryFindsWithinOneStep) {
  std::mt19937 random(1);
  int n_nearest = 0;
  for (int round = 0; round < 40000; ++round) {
    const auto source = Draw(random, 1 + round % 8);
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      const GridGroup group = RecoverGroup(source, dtype);
      if (group.outcome == Outcome::kZero) continue;
      const GroupProof proof = Store(source, group).Prove(dtype);
      ASSERT_TRUE(proof.is_right) << "round " << round;
      EXPECT_EQ(proof.worst_ulp, group.worst_ulp);
      EXPECT_LE(proof.worst_ulp, 1u);
      EXPECT_EQ(32 - proof.n_bit_identical - proof.n_zero_sign_lost, group.n_inexact);
      n_nearest += group.outcome == Outcome::kNearest ? 1 : 0;
    }
  }
  EXPECT_GT(n_nearest, 10000);
}

TEST(VerifyGroup, EveryWrongCodeIsFound) {
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    const auto source = Draw(random, 8);
    const GridGroup group = RecoverGroup(source, DType::kBF16);
    ASSERT_NE(group.outcome, Outcome::kOffGrid);
    const Stored stored = Store(source, group);
    const size_t column = random() % 32;
    for (int flipped = 1; flipped < 16; ++flipped) {
      Stored wrong = stored;
      wrong.packed[column / 2] ^= static_cast<std::byte>(flipped << (4 * (column % 2)));
      const GroupProof proof = wrong.Prove(DType::kBF16);
      EXPECT_FALSE(proof.is_right);
      EXPECT_FALSE(proof.has_right_codes);
      EXPECT_EQ(proof.column, static_cast<int>(column));
    }
  }
}

// A scale one step away is as good only if it, too, gives every value back, or neither does and
// both are neighbours of the interval.
TEST(VerifyGroup, AScaleThatCouldBeBetterIsFound) {
  std::mt19937 random(3);
  int n_refused = 0;
  for (int round = 0; round < 20000; ++round) {
    const auto source = Draw(random, 8);
    const GridGroup group = RecoverGroup(source, DType::kF16);
    if (group.outcome != Outcome::kExact) continue;
    for (const int steps : {-2, -1, 1, 2}) {
      Stored moved = Store(source, group);
      moved.scale_bits = static_cast<uint16_t>(moved.scale_bits + steps);
      const GroupProof proof = moved.Prove(DType::kF16);
      EXPECT_EQ(proof.is_right, proof.worst_ulp == 0);
      n_refused += proof.is_right ? 0 : 1;
    }
  }
  EXPECT_GT(n_refused, 20000);
}

TEST(VerifyGroup, ScalesMustBeFiniteAndNotZero) {
  Stored stored{};  // all codes -8, all values zero
  for (const uint16_t scale_bits : std::to_array<uint16_t>({0x0000, 0x8000, 0x7c00, 0x7e00})) {
    stored.scale_bits = scale_bits;
    EXPECT_FALSE(stored.Prove(DType::kF16).is_right);
  }
}

TEST(VerifyGroup, TheOtherZeroIsEqualButCounted) {
  GridGroup group;
  group.scale_bits = FloatToFp16(1.0f);
  std::array<uint16_t, 32> source{};
  source[4] = 0x8000;
  const GroupProof proof = Store(source, group).Prove(DType::kF16);
  EXPECT_TRUE(proof.is_right);
  EXPECT_EQ(proof.n_bit_identical, 31);
  EXPECT_EQ(proof.n_zero_sign_lost, 1);
}

}  // namespace
}  // namespace nibble::repack
