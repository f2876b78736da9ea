// Attention of one layer over KV pages: projections, norms, RoPE, storing K and V, and each token's
// look back. Mirrors Gemma4TextAttention of transformers.
#pragma once

#include <span>
#include <vector>

#include "gemma/config.h"
#include "model/ops.h"
#include "model/step.h"
#include "model/weights.h"

namespace nibble::model {

class Attention {
 public:
  Attention(const Ops& ops, const gemma::Config& config, const KvCache& cache)
      : ops_(ops), config_(config), cache_(cache) {}

  // x: [R, D], the normed hidden state of `rows`; out: [R, D]. Layers that own KV store that of all
  // rows first, so `rows` must then be all tokens of the step.
  void Run(int layer_idx, const LayerWeights& w, std::span<const StepSequence> sequences,
           std::span<const Row> rows, const RopeTable& rope, LinearInput& x, float* out);

 private:
  void StoreKv(int layer_idx, const LayerWeights& w, std::span<const StepSequence> sequences,
               std::span<const Row> rows, const RopeTable& rope, LinearInput& x);
  // In place, x: [R, n_heads, head_dim].
  void NormAndRotate(const std::vector<float>& norm, int64_t n_heads, int64_t head_dim,
                     std::span<const Row> rows, const RopeTable& rope, float* x) const;
  void LookBack(int layer_idx, std::span<const StepSequence> sequences, std::span<const Row> rows);

  Ops ops_;
  const gemma::Config& config_;
  const KvCache& cache_;
  std::vector<float> q_;         // [R, H, C]
  std::vector<float> k_;         // [R, J, C]
  std::vector<float> v_;         // [R, J, C]
  std::vector<float> attended_;  // [R, H, C]
  LinearInput attended_input_;
};

}  // namespace nibble::model
