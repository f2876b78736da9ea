// The mixture of experts beside the dense MLP (26B-A4B): router and experts. Mirrors
// Gemma4TextRouter and Gemma4TextExperts of transformers.
#pragma once

#include <cstdint>
#include <vector>

#include "gemma/config.h"
#include "model/ops.h"
#include "model/weights.h"

namespace nibble::model {

class Moe {
 public:
  Moe(const Ops& ops, const gemma::Config& config) : ops_(ops), config_(config) {}

  // residual: [T, D], what the router reads; x: [T, D], normed, what the experts read; out: [T, D].
  // A token's experts are added in ascending order, so its result depends on no other token.
  void Run(const LayerWeights& w, const float* residual, const float* x, int64_t n_tokens,
           float* out);

 private:
  struct Choice {
    int64_t token = 0;
    float weight = 0;
  };

  // choices_[e]: the tokens that chose expert e, ascending, with their weights.
  void Route(const LayerWeights& w, const float* residual, int64_t n_tokens);
  // out rows of `choices` += expert_out_ by weight.
  void Scatter(const std::vector<Choice>& choices, float* out);

  Ops ops_;
  const gemma::Config& config_;
  std::vector<std::vector<Choice>> choices_;  // by expert
  LinearInput input_;
  std::vector<float> router_in_;      // [T, D]
  std::vector<float> probabilities_;  // [T, E]
  std::vector<float> expert_in_;      // [tokens of one expert, D]
  std::vector<float> gate_up_;        // [.., 2 * moe_width]
  std::vector<float> inner_;          // [.., moe_width]
  std::vector<float> expert_out_;     // [.., D]
};

}  // namespace nibble::model
