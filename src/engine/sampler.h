// From logits to a token: greedy, or drawn with temperature, top-k and top-p; and
// log-probabilities.
//
// A draw is a function of (logits, sampling, index) alone, so a seed gives the same tokens alone,
// in a batch and after a restart. Tested by sampler_test.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::engine {

struct Sampling {
  double temperature = 0;  // 0: greedy, the largest logit, the lowest id among equals
  int top_k = 0;           // only the k most likely; 0: all
  double top_p = 1;        // only the fewest most likely whose probabilities reach p
  uint64_t seed = 0;
};

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;
};

// The token at `index` (0 for the first generated one).
int32_t Sample(std::span<const float> logits, const Sampling& sampling, int64_t index);

// log of the sum of exp(logits): a token's log-probability is its logit minus this.
double LogSumExp(std::span<const float> logits);

// The k most likely tokens, best first, the lower id first among equals; fewer if there are fewer.
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, int k);

}  // namespace nibble::engine
