// One step's tokens as the parts of the forward pass see them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gemma/config.h"
#include "model/kv_cache.h"

namespace nibble::model {

// What one sequence contributes to a step.
struct StepSequence {
  std::span<const int32_t> tokens;  // new ones, at least 1, each below Weights::n_token_ids()
  KvSequence* kv = nullptr;         // holds the tokens before them
  int n_logits = 1;  // logits wanted for the last n of them; 0 for a piece inside a prompt
};

// A row of the hidden state: which token it is.
struct Row {
  int seq_idx = 0;
  int token_idx = 0;     // in the step
  int64_t position = 0;  // in its sequence
};

// cos and sin of all tokens of a step for one kind of layer.
class RopeTable {
 public:
  explicit RopeTable(const gemma::LayerConfig& layer);

  bool Fits(const gemma::LayerConfig& layer) const;
  // Fills the table for these positions, one a token.
  void Fill(std::span<const Row> rows);
  const float* cos(int token_idx) const { return cos_.data() + token_idx * n_pairs(); }
  const float* sin(int token_idx) const { return sin_.data() + token_idx * n_pairs(); }
  int64_t n_pairs() const { return static_cast<int64_t>(frequencies_.size()); }

 private:
  double theta_;
  int head_dim_;
  std::vector<float> frequencies_;
  std::vector<float> cos_;  // [T, n_pairs]
  std::vector<float> sin_;
};

}  // namespace nibble::model
