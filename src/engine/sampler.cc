#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nibble::engine {
namespace {

// The k ids of the largest logits, best first.
std::vector<int32_t> BestIds(std::span<const float> logits, size_t k) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  k = std::min(k, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k), ids.end(),
                    [&](int32_t a, int32_t b) {
                      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
                    });
  ids.resize(k);
  return ids;
}

// A number in [0, 1) for (seed, index): the SplitMix64 generator's output of that index (Steele,
// Lea, Flood 2014), its upper 53 bits.
double Uniform(uint64_t seed, int64_t index) {
  uint64_t z = seed + (static_cast<uint64_t>(index) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

}  // namespace

int32_t Sample(std::span<const float> logits, const Sampling& sampling, int64_t index) {
  if (sampling.temperature == 0) {
    return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  }
  const std::vector<int32_t> ids =
      BestIds(logits, sampling.top_k > 0 ? static_cast<size_t>(sampling.top_k) : logits.size());
  std::vector<double> cumulative;
  double sum = 0;
  for (const int32_t id : ids) {
    sum += std::exp((static_cast<double>(logits[id]) - logits[ids[0]]) / sampling.temperature);
    cumulative.push_back(sum);
  }
  // The first n tokens, n the least whose share reaches top_p.
  auto end = std::ranges::lower_bound(cumulative, sampling.top_p * sum);
  if (end != cumulative.end()) ++end;
  const double draw = Uniform(sampling.seed, index) * *(end - 1);
  const auto chosen = std::upper_bound(cumulative.begin(), end - 1, draw);
  return ids[chosen - cumulative.begin()];
}

double LogSumExp(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return max + std::log(sum);
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, int k) {
  const double log_sum = LogSumExp(logits);
  std::vector<TokenLogprob> top;
  for (const int32_t id : BestIds(logits, static_cast<size_t>(k))) {
    top.push_back({.id = id, .logprob = static_cast<double>(logits[id]) - log_sum});
  }
  return top;
}

}  // namespace nibble::engine
