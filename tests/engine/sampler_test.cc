// Greedy choice, draws and log-probabilities on logits small enough to check by hand.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace nibble::engine {
namespace {

constexpr int kDraws = 20000;

int32_t Sample(const std::vector<float>& logits, const Sampling& sampling, int64_t index) {
  return Sampler(sampling, {}).Sample(logits, index);
}

std::map<int32_t, int> CountDraws(const std::vector<float>& logits, const Sampling& sampling) {
  std::map<int32_t, int> counts;
  Sampler sampler(sampling, {});
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.Sample(logits, i)];
  return counts;
}

// log of 1, 2, 4, 1: probabilities 1/8, 1/4, 1/2, 1/8.
const std::vector<float> kLogits = {0.0f, 0.693147f, 1.386294f, 0.0f};

TEST(Sample, GreedyTakesTheLowestIdAmongEquals) {
  EXPECT_EQ(Sample(std::vector<float>{1, 3, 2, 3}, {}, 0), 1);
  EXPECT_EQ(Sample(std::vector<float>{-1, -1}, {}, 5), 0);
}

TEST(Sample, DrawsByProbability) {
  const auto counts = CountDraws(kLogits, {.temperature = 1, .seed = 7});
  const double expected[] = {1.0 / 8, 1.0 / 4, 1.0 / 2, 1.0 / 8};
  for (int id = 0; id < 4; ++id) {
    // Six standard deviations of a binomial share.
    const double share = expected[id];
    EXPECT_NEAR(static_cast<double>(counts.at(id)) / kDraws, share,
                6 * std::sqrt(share * (1 - share) / kDraws));
  }
}

TEST(Sample, TemperatureSharpens) {
  // At 1/2 the weights are squared: 1, 4, 16, 1.
  const auto counts = CountDraws(kLogits, {.temperature = 0.5, .seed = 7});
  EXPECT_NEAR(counts.at(2) / double{kDraws}, 16.0 / 22, 6 * std::sqrt(0.2 / kDraws));
}

TEST(Sample, TopKKeepsTheBest) {
  const auto counts = CountDraws(kLogits, {.temperature = 1, .top_k = 2, .seed = 7});
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_NEAR(counts.at(2) / double{kDraws}, 2.0 / 3, 6 * std::sqrt(0.23 / kDraws));
  EXPECT_EQ(counts.count(1), 1u);
  EXPECT_EQ(CountDraws(kLogits, {.temperature = 1, .top_k = 1}).size(), 1u);
}

TEST(Sample, TopPKeepsTheFewestThatReachIt) {
  EXPECT_EQ(CountDraws(kLogits, {.temperature = 1, .top_p = 0.4}).size(), 1u);
  EXPECT_EQ(CountDraws(kLogits, {.temperature = 1, .top_p = 0.7}).size(), 2u);
  EXPECT_EQ(CountDraws(kLogits, {.temperature = 1, .top_p = 0.8}).size(), 3u);
  EXPECT_EQ(CountDraws(kLogits, {.temperature = 1, .top_p = 1}).size(), 4u);
  EXPECT_EQ(CountDraws(kLogits, {.temperature = 1, .top_p = 0}).size(), 1u);
}

TEST(Sample, IsAFunctionOfSeedAndIndex) {
  std::map<int32_t, int> same;
  for (int i = 0; i < 100; ++i) {
    const int32_t a = Sample(kLogits, {.temperature = 1, .seed = 3}, i);
    EXPECT_EQ(a, Sample(kLogits, {.temperature = 1, .seed = 3}, i));
    ++same[a == Sample(kLogits, {.temperature = 1, .seed = 4}, i)];
  }
  EXPECT_GT(same[0], 20);  // another seed draws otherwise
}

TEST(TopLogprobs, AreSortedAndNormalised) {
  const std::vector<TokenLogprob> top = TopLogprobs(kLogits, 10, LogSumExp(kLogits));
  ASSERT_EQ(top.size(), 4u);
  const int32_t ids[] = {2, 1, 0, 3};
  const double shares[] = {1.0 / 2, 1.0 / 4, 1.0 / 8, 1.0 / 8};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(top[i].id, ids[i]);
    EXPECT_NEAR(top[i].logprob, std::log(shares[i]), 1e-6);  // the logits have 7 digits
  }
  EXPECT_EQ(TopLogprobs(kLogits, 2, LogSumExp(kLogits)).size(), 2u);
  EXPECT_NEAR(LogSumExp(std::vector<float>{1000, 1000}), 1000 + std::log(2.0), 1e-9);
}

}  // namespace
}  // namespace nibble::engine
