// Greedy choice, draws and log-probabilities: by hand, against transformers, and against sorting.
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "base/json.h"

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

// Draws of transformers' processors (make_golden.py).
TEST(Sample, DrawsAsTransformersDoes) {
  const Json cases = *ReadJsonFile(NIBBLE_SOURCE_DIR "/tests/engine/golden/sampler.json");
  EXPECT_EQ(cases.size(), 12u);
  for (const Json& golden : cases) {
    const Json& own = golden["sampling"];
    Sampling sampling{.temperature = own["temperature"],
                      .top_k = own.value("top_k", 0),
                      .top_p = own.value("top_p", 1.0),
                      .min_p = own.value("min_p", 0.0),
                      .repetition_penalty = own.value("repetition_penalty", 1.0),
                      .presence_penalty = own.value("presence_penalty", 0.0),
                      .frequency_penalty = own.value("frequency_penalty", 0.0),
                      .seed = own["seed"]};
    const Json biases = own.value("logit_bias", Json::object());
    for (const auto& [id, bias] : biases.items()) {
      sampling.logit_bias.push_back({.id = std::stoi(id), .bias = bias});
    }
    const auto logits = golden["logits"].get<std::vector<float>>();
    Sampler sampler(sampling, golden["prompt"].get<std::vector<int32_t>>());
    for (const int32_t id : golden["answer"]) sampler.Accept(id);
    std::vector<int32_t> draws;
    for (size_t i = 0; i < golden["draws"].size(); ++i) {
      draws.push_back(sampler.Sample(logits, static_cast<int64_t>(i)));
    }
    EXPECT_EQ(draws, golden["draws"].get<std::vector<int32_t>>()) << own;
  }
}

std::vector<float> RandomLogits(size_t n, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(n);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// What top_k, top_p and min_p leave of a large vocabulary, against sorting it.
TEST(Sample, LeavesWhatSortingWould) {
  constexpr size_t kVocab = 20000;
  const std::vector<float> logits = RandomLogits(kVocab, 1);
  std::vector<int32_t> sorted(kVocab);
  std::iota(sorted.begin(), sorted.end(), 0);
  std::ranges::stable_sort(sorted, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  const auto expect_first = [&](const Sampling& sampling, size_t n) {
    const std::set<int32_t> expected(sorted.begin(), sorted.begin() + static_cast<int>(n));
    std::set<int32_t> drawn;
    Sampler sampler(sampling, {});
    for (int i = 0; i < 300; ++i) drawn.insert(sampler.Sample(logits, i));
    EXPECT_TRUE(std::ranges::includes(expected, drawn));
    EXPECT_GT(drawn.size(), n / 2);
  };
  expect_first({.temperature = 5, .top_k = 40}, 40);
  expect_first({.temperature = 5, .top_k = 350}, 350);  // more than there are blocks
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  double mass = 0;
  size_t n_for_top_p = 0;
  while (mass < 0.2 * total) mass += std::exp(static_cast<double>(logits[sorted[n_for_top_p++]]));
  expect_first({.temperature = 1, .top_p = 0.2}, n_for_top_p);
  size_t n_for_min_p = 0;
  while (logits[sorted[n_for_min_p]] > logits[sorted[0]] + std::log(0.05f)) ++n_for_min_p;
  expect_first({.temperature = 1, .min_p = 0.05}, n_for_min_p);
}

TEST(Sample, ChoosesOnlyWhatIsAllowed) {
  const std::vector<float> logits = RandomLogits(1000, 2);
  std::vector<uint64_t> allowed(16);
  for (const int id : {3, 64, 500, 999}) allowed[id / 64] |= uint64_t{1} << (id % 64);
  std::set<int32_t> drawn;
  for (const double temperature : {0.0, 1.0, 100.0}) {
    Sampler sampler({.temperature = temperature, .top_p = 0.99}, {});
    for (int i = 0; i < 200; ++i) drawn.insert(sampler.Sample(logits, i, allowed));
  }
  EXPECT_EQ(drawn, (std::set<int32_t>{3, 64, 500, 999}));
}

TEST(Sample, SurvivesWhatIsNoNumber) {
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  const uint64_t allowed[] = {0b110};
  for (const auto& logits : {std::vector{nan, nan, nan, nan}, std::vector{-inf, -inf, -inf, -inf},
                             std::vector{inf, inf, nan, 1.0f}, std::vector{1.0f, nan, nan, 2.0f}}) {
    for (const double temperature : {0.0, 1.0}) {
      Sampler sampler({.temperature = temperature, .repetition_penalty = 1e-300}, {});
      const int32_t id = sampler.Sample(logits, 0, allowed);
      EXPECT_TRUE(id == 1 || id == 2) << id;
      sampler.Accept(2);
      EXPECT_GE(sampler.Sample(logits, 1), 0);
      EXPECT_LT(sampler.Sample(logits, 1), 4);
    }
  }
  Sampler extreme({.temperature = 1, .logit_bias = {{1, 1e308}, {2, -1e308}, {-1, 1}, {99, 1}}},
                  {});
  EXPECT_EQ(extreme.Sample(kLogits, 0), 1);
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
