// Attention over pages against double arithmetic, and its independence of what pages hold outside
// the range that is seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"
#include "kernels/choose_kernels.h"

namespace nibble::kernels {
namespace {

constexpr int kHeadDim = 48;
constexpr int kPositions = 70;  // the last page is not full
constexpr int kPages = 5;
constexpr int kQueries = 15;  // 8 + 4 + 2 + 1

const KernelTable& Scalar() { return **ChooseKernels("scalar"); }

// K and V of one head in pages of every format, and the floats that they stand for.
class AttentionTest : public ::testing::Test {
 protected:
  AttentionTest() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& value : q_) value = normal(random) * 0.3f;
    for (const KvFormat format : kFormats) {
      auto& pages = pages_[static_cast<size_t>(format)];
      pages.assign(kPages, std::vector<std::byte>(2 * kSideBytes));
      for (int p = 0; p < kPages * 16; ++p) {
        SetScale(format, p, 0, std::fabs(normal(random)) / 50);
        SetScale(format, p, kSideBytes, std::fabs(normal(random)) / 50);
        for (int c = 0; c < kHeadDim; ++c) {
          Set(format, p, c, normal(random) * (format == KvFormat::kInt8 ? 30 : 1));
          SetV(format, p, c, normal(random) * (format == KvFormat::kInt8 ? 30 : 1));
        }
      }
    }
  }

  static constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8};
  static constexpr int64_t kSideBytes = int64_t{kHeadDim} * kPageTokens * 4 + 64;

  std::byte* Page(KvFormat format, int p) {
    return pages_[static_cast<size_t>(format)][p / kPageTokens].data();
  }

  static void Store(KvFormat format, std::byte* side, int64_t i, float value) {
    const uint16_t bf16 = FloatToBf16(value);
    const auto int8 = static_cast<int8_t>(std::isfinite(value) ? value : 0);
    if (format == KvFormat::kF32) std::memcpy(side + i * 4, &value, 4);
    if (format == KvFormat::kBf16) std::memcpy(side + i * 2, &bf16, 2);
    if (format == KvFormat::kInt8) std::memcpy(side + i, &int8, 1);
  }
  static float Read(KvFormat format, const std::byte* side, int64_t i) {
    float value = 0;
    uint16_t bf16 = 0;
    if (format == KvFormat::kF32) std::memcpy(&value, side + i * 4, 4);
    if (format == KvFormat::kInt8) value = static_cast<float>(static_cast<int8_t>(side[i]));
    if (format != KvFormat::kBf16) return value;
    std::memcpy(&bf16, side + i * 2, 2);
    return Bf16ToFloat(bf16);
  }

  void SetScale(KvFormat format, int p, int64_t side, float scale) {
    if (format != KvFormat::kInt8) return;
    std::memcpy(Page(format, p) + side + int64_t{kHeadDim} * kPageTokens + p % kPageTokens * 4,
                &scale, 4);
  }
  float Scale(KvFormat format, int p, int64_t side) {
    float scale = 1;
    if (format == KvFormat::kInt8) {
      std::memcpy(&scale,
                  Page(format, p) + side + int64_t{kHeadDim} * kPageTokens + p % kPageTokens * 4,
                  4);
    }
    return scale;
  }
  void Set(KvFormat format, int p, int c, float value) {
    Store(format, Page(format, p), c * kPageTokens + p % kPageTokens, value);
  }
  void SetV(KvFormat format, int p, int c, float value) {
    Store(format, Page(format, p) + kSideBytes, p % kPageTokens * kHeadDim + c, value);
  }
  double K(KvFormat format, int p, int c) {
    return static_cast<double>(Read(format, Page(format, p), c * kPageTokens + p % kPageTokens)) *
           Scale(format, p, 0);
  }
  double V(KvFormat format, int p, int c) {
    return static_cast<double>(
               Read(format, Page(format, p) + kSideBytes, p % kPageTokens * kHeadDim + c)) *
           Scale(format, p, kSideBytes);
  }

  std::vector<float> Run(KvFormat format, int begin, int end, int first_page = 0,
                         const KernelTable& kernels = Scalar()) {
    std::vector<const std::byte*> pages;
    for (int i = first_page; i < kPages; ++i) pages.push_back(Page(format, i * 16));
    std::vector<float> scores(kQueries * kPages * kPageTokens);
    std::vector<float> out(kQueries * kHeadDim);
    kernels.attention({.q = q_,
                       .n_queries = kQueries,
                       .head_dim = kHeadDim,
                       .kv_format = format,
                       .pages = pages.data(),
                       .first_page = first_page,
                       .k_offset = 0,
                       .v_offset = kSideBytes,
                       .begin = begin,
                       .end = end,
                       .scores = scores.data(),
                       .out = out.data()});
    return out;
  }

  void ExpectWithinBound(KvFormat format, int begin, int end);

  std::vector<std::vector<std::byte>> pages_[3];
  float q_[kQueries * kHeadDim] = {};
};

void AttentionTest::ExpectWithinBound(KvFormat format, int begin, int end) {
  constexpr double kU = 0x1p-24;
  const std::vector<float> out = Run(format, begin, end);
  for (int query = 0; query < kQueries; ++query) {
    const float* q = q_ + query * kHeadDim;
    std::vector<double> weights;
    double score_error = 0;
    double max = -INFINITY;
    for (int p = begin; p < end; ++p) {
      double score = 0;
      double size = 0;
      for (int c = 0; c < kHeadDim; ++c) {
        score += q[c] * K(format, p, c);
        size += std::fabs(q[c] * K(format, p, c));
      }
      weights.push_back(score);
      max = std::max(max, score);
      score_error = std::max(score_error, (34 + kHeadDim / 32.0) * kU * size);
    }
    double sum = 0;
    double spread = 0;
    for (double& weight : weights) {
      spread = std::max(spread, max - weight);
      weight = std::exp(weight - max);
      sum += weight;
    }
    // The bound of kernels.h: exponentials by value, their sum and the weighted sum.
    const double factor = 2 * (2 * score_error + (8 + 2 * spread) * kU) + (18 + kPages + 8) * kU;
    for (int c = 0; c < kHeadDim; ++c) {
      double value = 0;
      double size = 0;
      for (int p = begin; p < end; ++p) {
        value += weights[p - begin] / sum * V(format, p, c);
        size += weights[p - begin] / sum * std::fabs(V(format, p, c));
      }
      ASSERT_LE(std::fabs(out[query * kHeadDim + c] - value), factor * size)
          << begin << " to " << end << ", query " << query << ", " << c;
    }
  }
}

constexpr std::pair<int, int> kRanges[] = {{0, 1}, {0, 16}, {3, 20}, {17, 18}, {0, kPositions}};

TEST_F(AttentionTest, MatchesDoubleArithmetic) {
  for (const KvFormat format : kFormats) {
    for (const auto& [begin, end] : kRanges) ExpectWithinBound(format, begin, end);
  }
}

TEST_F(AttentionTest, IsTheSameWithEveryInstructionSet) {
  for (const KernelTable* kernels : AvailableKernels()) {
    for (const KvFormat format : kFormats) {
      for (const auto& [begin, end] : kRanges) {
        const auto expected = Run(format, begin, end);
        const auto found = Run(format, begin, end, 0, *kernels);
        ASSERT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0)
            << kernels->name << ", " << static_cast<int>(format) << ", " << begin << " to " << end;
      }
    }
  }
}

TEST_F(AttentionTest, OfOnePositionIsItsValue) {
  for (const KvFormat format : kFormats) {
    const std::vector<float> out = Run(format, 37, 38);
    for (int c = 0; c < kHeadDim; ++c) EXPECT_EQ(out[c], static_cast<float>(V(format, 37, c)));
  }
}

TEST_F(AttentionTest, IgnoresWhatLiesOutsideTheRange) {
  for (const KernelTable* kernels : AvailableKernels()) {
    const std::vector<float> before = Run(KvFormat::kF32, 21, 40);
    for (const int p : {16, 20, 40, 47}) {
      for (int c = 0; c < kHeadDim; ++c) {
        SetV(KvFormat::kF32, p, c, std::numeric_limits<float>::quiet_NaN());
        Set(KvFormat::kF32, p, c, std::numeric_limits<float>::infinity());
      }
    }
    EXPECT_EQ(Run(KvFormat::kF32, 21, 40, 0, *kernels), before) << kernels->name;
  }
}

TEST_F(AttentionTest, IsTheSameWhenEarlierPagesAreGone) {
  for (const KernelTable* kernels : AvailableKernels()) {
    EXPECT_EQ(Run(KvFormat::kBf16, 21, 40, 1, *kernels), Run(KvFormat::kBf16, 21, 40));
  }
}

}  // namespace
}  // namespace nibble::kernels
