// Attention over pages against double arithmetic, and its independence of what pages hold outside
// the range that is seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/choose_kernels.h"

namespace nibble::kernels {
namespace {

constexpr int kHeadDim = 48;
constexpr int kPositions = 70;  // the last page is not full
constexpr int kPages = 5;
constexpr int kQueries = 3;

const KernelTable& Kernels() { return **ChooseKernels(nullptr); }

class AttentionTest : public ::testing::Test {
 protected:
  AttentionTest() : pages_(kPages, std::vector<float>(2 * kHeadDim * kPageTokens)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (std::vector<float>& page : pages_) {
      for (float& value : page) value = normal(random);
    }
    for (float& value : q_) value = normal(random) * 0.3f;
  }

  float K(int position, int c) const {
    return pages_[position / kPageTokens][c * kPageTokens + position % kPageTokens];
  }
  float& V(int position, int c) {
    return pages_[position / kPageTokens]
                 [kHeadDim * kPageTokens + position % kPageTokens * kHeadDim + c];
  }

  std::vector<float> Run(int begin, int end, int first_page = 0) {
    std::vector<const float*> pages;
    for (int i = first_page; i < kPages; ++i) pages.push_back(pages_[i].data());
    std::vector<float> scores(kPages * kPageTokens);
    std::vector<float> out(kQueries * kHeadDim);
    Kernels().attention({.q = q_,
                         .n_queries = kQueries,
                         .head_dim = kHeadDim,
                         .pages = pages.data(),
                         .first_page = first_page,
                         .k_offset = 0,
                         .v_offset = kHeadDim * kPageTokens,
                         .begin = begin,
                         .end = end,
                         .scores = scores.data(),
                         .out = out.data()});
    return out;
  }

  std::vector<std::vector<float>> pages_;
  float q_[kQueries * kHeadDim] = {};
};

TEST_F(AttentionTest, MatchesDoubleArithmetic) {
  constexpr double kU = 0x1p-24;
  for (const auto& [begin, end] : {std::pair(0, 1), {0, 16}, {3, 20}, {17, 18}, {0, kPositions}}) {
    const std::vector<float> out = Run(begin, end);
    for (int query = 0; query < kQueries; ++query) {
      const float* q = q_ + query * kHeadDim;
      std::vector<double> weights;
      double score_error = 0;
      double max = -INFINITY;
      for (int p = begin; p < end; ++p) {
        double score = 0;
        double size = 0;
        for (int c = 0; c < kHeadDim; ++c) {
          score += static_cast<double>(q[c]) * K(p, c);
          size += std::fabs(static_cast<double>(q[c]) * K(p, c));
        }
        weights.push_back(score);
        max = std::max(max, score);
        score_error = std::max(score_error, (33 + kHeadDim / 32.0) * kU * size);
      }
      double sum = 0;
      double spread = 0;
      for (double& weight : weights) {
        spread = std::max(spread, max - weight);
        weight = std::exp(weight - max);
        sum += weight;
      }
      // The bound of kernels.h: exponentials by value, their sum and the weighted sum.
      const double factor = 2 * (2 * score_error + (8 + 2 * spread) * kU) + (17 + kPages + 8) * kU;
      for (int c = 0; c < kHeadDim; ++c) {
        double value = 0;
        double size = 0;
        for (int p = begin; p < end; ++p) {
          value += weights[p - begin] / sum * V(p, c);
          size += weights[p - begin] / sum * std::fabs(V(p, c));
        }
        ASSERT_LE(std::fabs(out[query * kHeadDim + c] - value), factor * size)
            << begin << " to " << end << ", query " << query << ", " << c;
      }
    }
  }
}

TEST_F(AttentionTest, OfOnePositionIsItsValue) {
  const std::vector<float> out = Run(37, 38);
  for (int c = 0; c < kHeadDim; ++c) EXPECT_EQ(out[c], V(37, c));
}

TEST_F(AttentionTest, IgnoresWhatLiesOutsideTheRange) {
  const std::vector<float> before = Run(21, 40);
  for (const int p : {16, 20, 40, 47}) {
    for (int c = 0; c < kHeadDim; ++c) {
      V(p, c) = std::numeric_limits<float>::quiet_NaN();
      pages_[p / kPageTokens][c * kPageTokens + p % kPageTokens] =
          std::numeric_limits<float>::infinity();
    }
  }
  EXPECT_EQ(Run(21, 40), before);
}

TEST_F(AttentionTest, IsTheSameWhenEarlierPagesAreGone) {
  EXPECT_EQ(Run(21, 40, /*first_page=*/1), Run(21, 40));
}

}  // namespace
}  // namespace nibble::kernels
