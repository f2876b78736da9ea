// From logits to a token: penalties and biases, then greedy or drawn with temperature, min-p, top-k
// and top-p, in vLLM's order and meaning; and log-probabilities.
//
// A draw is a function of (logits, sampling, tokens so far, index) alone, so a seed gives the same
// tokens alone, in a batch and after a restart. Nothing sorts the vocabulary. Not thread-safe.
// Tested by sampler_test.cc.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace nibble::engine {

struct LogitBias {
  int32_t id = 0;
  double bias = 0;
};

// Applied in this order: logit_bias, repetition, frequency and presence penalty, temperature,
// min_p, top_k, top_p.
struct Sampling {
  double temperature = 0;  // below 1e-5: greedy, the largest logit, the lowest id among equals
  int top_k = 0;           // only the k most likely, and equals of the last of them; 0: all
  double top_p = 1;        // only the fewest most likely whose probabilities reach p
  double min_p = 0;        // only those at least this share as likely as the most likely
  double repetition_penalty = 1;           // > 0; logits of tokens in prompt or answer: divided
                                           // where positive, multiplied elsewhere
  double presence_penalty = 0;             // taken off logits of tokens in the answer
  double frequency_penalty = 0;            // the same, for each time they occur in it
  uint64_t seed = 0;                       // of the draws
  std::vector<LogitBias> logit_bias = {};  // added; ids outside the vocabulary are ignored
};

struct TokenLogprob {
  int32_t id = 0;
  double logprob = 0;
};

// One request's sampler.
class Sampler {
 public:
  // `prompt`: what the repetition penalty counts besides the answer.
  Sampler(Sampling sampling, std::span<const int32_t> prompt);

  // The token at `index` (0 for the first generated one). `allowed`: bit i % 64 of word i / 64 says
  // whether it may be id i; one is set within the vocabulary. Empty: all may.
  int32_t Sample(std::span<const float> logits, int64_t index,
                 std::span<const uint64_t> allowed = {});
  // Counts a token of the answer.
  void Accept(int32_t id);

 private:
  struct Candidate {
    float weight;  // probability / that of the most likely
    int32_t id;
  };

  void Adjust(std::span<const uint64_t> allowed);
  int32_t Draw(std::span<const float> logits, float max, double uniform);
  void KeepMass(double mass);

  Sampling sampling_;
  std::unordered_map<int32_t, int> n_in_answer_;  // with 0 for those in the prompt alone
  std::vector<float> logits_;                     // adjusted
  std::vector<float> weights_;
  std::vector<Candidate> candidates_;  // ascending by id
};

// log of the sum of exp(logits): a token's log-probability is its logit minus this.
double LogSumExp(std::span<const float> logits);

// The k most likely tokens, best first, the lower id first among equals; fewer if there are fewer.
// log_sum: LogSumExp(logits).
std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, int k, double log_sum);

}  // namespace nibble::engine
