// Every instruction set that this machine has, against RecoverGroup: the same bytes and counts.
#include "repack/grid_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "base/float16.h"
#include "formats/int4_group32.h"
#include "repack/grid.h"
#include "repack/grid_counts.h"
#include "repack/grid_dispatch.h"

namespace nibble::repack {
namespace {

using Bits = std::array<uint16_t, kGridGroup>;
using Random = std::mt19937;

// Runs all groups through each instruction set and returns how many groups none of them left over.
size_t CompareAll(const std::vector<Bits>& groups) {
  const auto n_groups = std::ssize(groups);
  std::vector<std::byte> source(groups.size() * 64 + 2);  // read at an odd place, as in files
  std::memcpy(source.data() + 2, groups.data(), groups.size() * 64);
  std::vector<bool> is_solved(groups.size(), true);
  for (const InstructionSet set : AvailableInstructionSets()) {
    if (set == InstructionSet::kScalar) continue;
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      std::vector<std::byte> packed(groups.size() * 16);
      std::vector<std::byte> scales(groups.size() * 2);
      std::vector<uint32_t> left_over(groups.size());
      GridSums sums;
      const int64_t n_left_over = RecoverBatch(set,
                                               {.source = source.data() + 2,
                                                .n_groups = n_groups,
                                                .is_fp16 = dtype == DType::kF16,
                                                .packed = packed.data(),
                                                .scales = scales.data()},
                                               left_over.data(), &sums);
      GridCounts found;
      found.Add(sums);
      GridCounts expected;
      int64_t next = 0;
      for (size_t i = 0; i < groups.size(); ++i) {
        if (next < n_left_over && left_over[next] == i) {
          ++next;
          is_solved[i] = false;
          continue;
        }
        const GridGroup group = RecoverGroup(groups[i], dtype);
        expected.Add(group);
        std::array<std::byte, 16> expected_packed;
        formats::PackGroup(group.codes, expected_packed);
        EXPECT_EQ(std::memcmp(&packed[i * 16], expected_packed.data(), 16), 0)
            << Name(set) << " group " << i;
        EXPECT_EQ(std::memcmp(&scales[i * 2], &group.scale_bits, 2), 0)
            << Name(set) << " group " << i;
        if (testing::Test::HasFailure()) return 0;
      }
      EXPECT_EQ(next, n_left_over);
      EXPECT_EQ(found.ToJson(), expected.ToJson()) << Name(set);
    }
  }
  return static_cast<size_t>(std::ranges::count(is_solved, true));
}

float DrawScale(Random& random, double log2_low, double log2_high) {
  std::uniform_real_distribution<double> exponent(log2_low, log2_high);
  const auto scale = static_cast<float>(std::exp2(exponent(random)));
  switch (random() % 3) {
    case 0:
      return Fp16ToFloat(FloatToFp16(scale));
    case 1:
      return RoundToBf16(scale);
    default:
      return scale;
  }
}

Bits Read(std::span<const int, kGridGroup> codes, float scale) {
  Bits bits;
  for (int i = 0; i < kGridGroup; ++i) {
    bits[i] = FloatToBf16(static_cast<float>(codes[i]) * scale);
  }
  return bits;
}

// bf16(d * q), codes up to a random peak.
Bits DrawOnGrid(Random& random, double log2_low, double log2_high) {
  const int peak_code = 1 + static_cast<int>(random() % 8);
  std::uniform_int_distribution<int> code(-peak_code, std::min(peak_code, 7));
  std::array<int, kGridGroup> codes;
  for (int& q : codes) q = code(random);
  const float scale = DrawScale(random, log2_low, log2_high);
  return Read(codes, random() % 2 == 0 ? scale : -scale);
}

// Codes from {0, a, b}, both signs: often several peak codes explain such a group, exactly or not.
Bits DrawAmbiguous(Random& random) {
  const std::array<int, 3> choices = {0, static_cast<int>(random() % 9),
                                      static_cast<int>(random() % 9)};
  const bool has_both_signs = random() % 2 == 0;
  std::array<int, kGridGroup> codes;
  for (int& q : codes) {
    q = -choices[random() % 3];
    if (has_both_signs && q > -8 && random() % 2 == 0) q = -q;
  }
  return Read(codes, DrawScale(random, -12, 4));
}

std::vector<Bits> Many(size_t n_groups, const std::function<Bits()>& draw) {
  std::vector<Bits> groups(n_groups);
  for (Bits& bits : groups) bits = draw();
  return groups;
}

class GridBatch : public testing::Test {
 protected:
  void SetUp() override {
    if (AvailableInstructionSets().size() == 1) GTEST_SKIP() << "scalar is all that there is";
  }
};

constexpr size_t kBatchGroups = 40000 + 5;  // not a multiple of the lanes

TEST_F(GridBatch, GroupsOnTheGridAreSolvedAlike) {
  Random random(1);
  EXPECT_GT(CompareAll(Many(kBatchGroups, [&] { return DrawOnGrid(random, -13, 10); })),
            kBatchGroups * 98 / 100);
}

TEST_F(GridBatch, AmbiguousGroupsAreSolvedAlike) {
  Random random(2);
  EXPECT_GT(CompareAll(Many(kBatchGroups, [&] { return DrawAmbiguous(random); })),
            kBatchGroups * 8 / 10);
}

TEST_F(GridBatch, EveryMagnitudeIsSolvedAlikeOrLeftOver) {
  Random random(3);
  const size_t n_solved =
      CompareAll(Many(kBatchGroups, [&] { return DrawOnGrid(random, -140, 127); }));
  EXPECT_GT(n_solved, kBatchGroups / 10);  // fp16 reaches over a sixth of these exponents
  EXPECT_LT(n_solved, kBatchGroups / 5);
  EXPECT_GT(CompareAll(Many(kBatchGroups, [&] { return DrawOnGrid(random, -24, -12); })),
            kBatchGroups / 2);
  EXPECT_GT(CompareAll(Many(kBatchGroups, [&] { return DrawOnGrid(random, 10, 17); })),
            kBatchGroups / 2);
}

TEST_F(GridBatch, GroupsOffTheGridAreLeftOver) {
  Random random(4);
  const auto moved = [&] {
    Bits bits = DrawOnGrid(random, -13, 10);
    const size_t column = random() % kGridGroup;
    bits[column] = static_cast<uint16_t>(bits[column] + random() % 4);
    return bits;
  };
  const size_t n_solved = CompareAll(Many(kBatchGroups, moved));
  EXPECT_GT(n_solved, kBatchGroups / 5);
  EXPECT_LT(n_solved, kBatchGroups * 4 / 5);
}

// Among groups that are fine: their neighbours must not notice.
TEST_F(GridBatch, OddGroupsAreLeftOverAlone) {
  Random random(5);
  const std::array<uint16_t, 9> odd = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0,
                                       0x0001, 0x807f, 0x7f7f, 0xff7f};
  size_t n_odd = 0;
  const size_t n_solved = CompareAll(Many(kBatchGroups, [&] {
    Bits bits = DrawOnGrid(random, -13, 10);
    const uint16_t value = odd[random() % odd.size()];
    const size_t kind = random() % 8;
    if (kind == 0) bits.fill(value);
    if (kind == 1) bits[random() % kGridGroup] = value;
    if (kind == 2) {
      for (uint16_t& each : bits) each = random() % 2 == 0 ? 0x0000 : 0x8000;
    }
    n_odd += kind < 3 ? 1 : 0;
    return bits;
  }));
  EXPECT_GE(n_solved, (kBatchGroups - n_odd) * 98 / 100);
  EXPECT_LT(n_solved, kBatchGroups - n_odd / 2);
}

TEST_F(GridBatch, AnyBitsAtAll) {
  Random random(6);
  CompareAll(Many(kBatchGroups, [&] {
    Bits bits;
    for (uint16_t& value : bits) value = static_cast<uint16_t>(random());
    return bits;
  }));
  // Few different values near each other, so that intervals touch in single points.
  CompareAll(Many(kBatchGroups, [&] {
    const auto base = static_cast<uint16_t>(0x3c00 + random() % 0x400);
    Bits bits;
    for (uint16_t& value : bits) {
      const float multiple = static_cast<float>(random() % 8 + 1) * Bf16ToFloat(base);
      value = static_cast<uint16_t>(FloatToBf16(multiple) + random() % 2);
    }
    return bits;
  }));
}

TEST_F(GridBatch, ScalarLeavesEverythingOver) {
  std::array<uint32_t, 3> left_over{};
  GridSums sums;
  EXPECT_EQ(RecoverBatch(InstructionSet::kScalar, {.n_groups = 3}, left_over.data(), &sums), 3);
  EXPECT_EQ(left_over, (std::array<uint32_t, 3>{0, 1, 2}));
}

}  // namespace
}  // namespace nibble::repack
