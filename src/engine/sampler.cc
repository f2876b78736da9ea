#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace nibble::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr double kGreedyTemperature = 1e-5;
constexpr size_t kLanes = 16;
constexpr size_t kBlock = 64;  // ids whose largest logit, or sum of weights, is looked at first

// e^x for x <= 0 within 2 units in the last place, 0 below -87.7 and for what is no number; without
// a branch, so that compilers make vectors of it. Cephes' expf (Moshier): x = n ln 2 + r, and a
// polynomial in r.
float Exp(float x) {
  constexpr float kRound = 0x1.8p23f;
  const float clamped = x > -88.0f ? x : -88.0f;  // n = -127: a power of all zero bits
  const float shifted = clamped * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t power = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;
  return p * std::bit_cast<float>(power);
}

float Max(std::span<const float> x) {
  float lanes[kLanes];
  std::ranges::fill(lanes, kMinusInfinity);
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    }
  }
  for (; i < x.size(); ++i) lanes[0] = std::max(lanes[0], x[i]);
  return *std::ranges::max_element(lanes);
}

double Sum(std::span<const float> x) {
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<double>(x[i + lane]);
  }
  for (; i < x.size(); ++i) lanes[0] += static_cast<double>(x[i]);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

std::span<const float> Block(std::span<const float> x, size_t begin) {
  return x.subspan(begin, std::min(kBlock, x.size() - begin));
}

// The ids, ascending, of the k largest logits and of the k-th one's equals. The k-th largest of the
// blocks' maxima is at most the k-th largest logit, so that few blocks are looked into.
std::vector<int32_t> BestIds(std::span<const float> logits, size_t k) {
  std::vector<float> maxima;
  for (size_t i = 0; i < logits.size(); i += kBlock) maxima.push_back(Max(Block(logits, i)));
  float bound = kMinusInfinity;
  const auto kth = static_cast<std::ptrdiff_t>(k) - 1;
  if (k <= maxima.size()) {
    std::vector<float> sorted = maxima;
    std::ranges::nth_element(sorted, sorted.begin() + kth, std::greater());
    bound = sorted[k - 1];
  }
  std::vector<int32_t> ids;
  const auto collect = [&] {
    ids.clear();
    for (size_t block = 0; block < maxima.size(); ++block) {
      if (maxima[block] < bound) continue;
      const std::span<const float> own = Block(logits, block * kBlock);
      for (size_t i = 0; i < own.size(); ++i) {
        if (own[i] >= bound) ids.push_back(static_cast<int32_t>(block * kBlock + i));
      }
    }
  };
  collect();
  if (ids.size() <= k) return ids;
  std::vector<float> found;
  found.reserve(ids.size());
  for (const int32_t id : ids) found.push_back(logits[id]);
  std::ranges::nth_element(found, found.begin() + kth, std::greater());
  bound = found[k - 1];
  std::erase_if(ids, [&](int32_t id) { return logits[id] < bound; });
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

int32_t LowestId(std::span<const uint64_t> allowed) {
  for (size_t word = 0; word < allowed.size(); ++word) {
    if (allowed[word] != 0) {
      return static_cast<int32_t>(word * 64) + std::countr_zero(allowed[word]);
    }
  }
  return 0;
}

}  // namespace

Sampler::Sampler(Sampling sampling, std::span<const int32_t> prompt)
    : sampling_(std::move(sampling)) {
  if (sampling_.repetition_penalty == 1) return;
  for (const int32_t id : prompt) n_in_answer_[id] = 0;
}

void Sampler::Accept(int32_t id) { ++n_in_answer_[id]; }

int32_t Sampler::Sample(std::span<const float> logits, int64_t index,
                        std::span<const uint64_t> allowed) {
  const bool penalizes = sampling_.repetition_penalty != 1 || sampling_.frequency_penalty != 0 ||
                         sampling_.presence_penalty != 0;
  if (penalizes || !sampling_.logit_bias.empty() || !allowed.empty()) {
    logits_.assign(logits.begin(), logits.end());
    Adjust(allowed);
    logits = logits_;
  }
  const float max = Max(logits);
  if (!std::isfinite(max))
    return LowestId(allowed);  // broken weights: any token, but an allowed one
  if (sampling_.temperature >= kGreedyTemperature) {
    return Draw(logits, max, Uniform(sampling_.seed, index));
  }
  return static_cast<int32_t>(std::ranges::find(logits, max) - logits.begin());
}

// Results stay finite, whatever the numbers of the request are; what is not allowed alone becomes
// minus infinity.
void Sampler::Adjust(std::span<const uint64_t> allowed) {
  const auto adjust = [this](int32_t id, const auto& change) {
    if (id < 0 || static_cast<size_t>(id) >= logits_.size()) return;
    const double changed = change(static_cast<double>(logits_[id]));
    logits_[id] = changed > -1e30 ? static_cast<float>(std::min(changed, 1e30)) : -1e30f;
  };
  for (const LogitBias& bias : sampling_.logit_bias) {
    adjust(bias.id, [&](double logit) { return logit + bias.bias; });
  }
  for (const auto& [id, n] : n_in_answer_) {
    adjust(id, [&](double logit) {
      const double penalty = sampling_.repetition_penalty;
      logit = logit > 0 ? logit / penalty : logit * penalty;
      if (n == 0) return logit;
      return logit - n * sampling_.frequency_penalty - sampling_.presence_penalty;
    });
  }
  for (size_t word = 0; word < allowed.size(); ++word) {
    const size_t begin = std::min(word * 64, logits_.size());
    const size_t end = std::min(begin + 64, logits_.size());
    for (uint64_t not_allowed = ~allowed[word]; not_allowed != 0; not_allowed &= not_allowed - 1) {
      const size_t id = begin + static_cast<size_t>(std::countr_zero(not_allowed));
      if (id < end) logits_[id] = kMinusInfinity;
    }
  }
}

int32_t Sampler::Draw(std::span<const float> logits, float max, double uniform) {
  const auto scale = static_cast<float>(1 / sampling_.temperature);
  weights_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) weights_[i] = Exp((logits[i] - max) * scale);

  const auto floor = static_cast<float>(sampling_.min_p);
  candidates_.clear();
  const auto consider = [&](size_t id, float least) {
    if (weights_[id] >= least && weights_[id] > 0) {
      candidates_.push_back({weights_[id], static_cast<int32_t>(id)});
    }
  };
  const auto n_top = static_cast<size_t>(sampling_.top_k);
  double total = 0;
  if (n_top > 0 && n_top < logits.size()) {
    for (const int32_t id : BestIds(logits, n_top)) consider(static_cast<size_t>(id), floor);
    for (const Candidate& candidate : candidates_) total += static_cast<double>(candidate.weight);
  } else {
    if (floor > 0) {
      for (float& weight : weights_) weight = weight >= floor ? weight : 0;
    }
    total = Sum(weights_);
    // All those below this weigh less than 1 - top_p together: top_p leaves none of them.
    const double share = (1 - sampling_.top_p) * total / static_cast<double>(logits.size());
    const auto least = static_cast<float>(std::max(0.0, 0.999 * share));
    for (size_t id = 0; id < weights_.size(); ++id) consider(id, least);
  }
  if (sampling_.top_p < 1) {
    KeepMass(sampling_.top_p * total);
    total = 0;
    for (const Candidate& candidate : candidates_) total += static_cast<double>(candidate.weight);
  }
  double left = uniform * total;
  for (const Candidate& candidate : candidates_) {
    left -= static_cast<double>(candidate.weight);
    if (left < 0) return candidate.id;
  }
  return candidates_.back().id;
}

// Keeps the fewest heaviest candidates that weigh `mass` together, lower ids before their equals.
// Halves what may hold the last of them, so that it takes time in proportion to their number.
void Sampler::KeepMass(double mass) {
  const auto heavier = [](const Candidate& a, const Candidate& b) {
    return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
  };
  std::vector<Candidate> sorted = candidates_;
  auto begin = sorted.begin();
  auto end = sorted.end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, heavier);
    double half = 0;
    for (auto it = begin; it != middle; ++it) half += static_cast<double>(it->weight);
    if (half >= mass) {
      end = middle;
    } else {
      mass -= half;
      begin = middle;
    }
  }
  const Candidate last = *begin;
  std::erase_if(candidates_, [&](const Candidate& c) { return heavier(last, c); });
}

double LogSumExp(std::span<const float> logits) {
  const float max = Max(logits);
  double sum = 0;
  float weights[kBlock];
  for (size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::span<const float> own = Block(logits, begin);
    for (size_t i = 0; i < own.size(); ++i) weights[i] = Exp(own[i] - max);
    sum += Sum(std::span(weights).first(own.size()));
  }
  return static_cast<double>(max) + std::log(sum);
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, int k, double log_sum) {
  std::vector<int32_t> ids = BestIds(logits, static_cast<size_t>(k));
  std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  ids.resize(std::min(ids.size(), static_cast<size_t>(k)));
  std::vector<TokenLogprob> top;
  top.reserve(ids.size());
  for (const int32_t id : ids) {
    top.push_back({.id = id, .logprob = static_cast<double>(logits[id]) - log_sum});
  }
  return top;
}

}  // namespace nibble::engine
