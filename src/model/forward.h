// The forward pass of Gemma 4, all sizes: one step over a batch in which every sequence contributes
// n new tokens (1 in decode, a piece of the prompt in prefill). Reads like transformers'
// modeling_gemma4.py (Gemma4TextModel, Gemma4ForCausalLM), in float32.
//
// Only rows whose logits are wanted pass through the trailing KV-shared layers: those layers write
// no cache, so the other rows' results would be thrown away. Logits do not depend on what else is
// in the batch, on how a prompt is cut into pieces, or on threads. Tested by forward_test.cc,
// engine_test.cc and tests/interop/test_logits.py (against transformers).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/attention.h"
#include "model/kv_cache.h"
#include "model/moe.h"
#include "model/ops.h"
#include "model/step.h"
#include "model/weights.h"

namespace nibble::model {

class Forward {
 public:
  // All of them must outlive this object. Not thread-safe.
  Forward(const Weights& weights, const KvCache& cache, const Ops& ops);

  // Runs the step and stores its KV. Returns the wanted logits, [sum of n_logits, V], sequences in
  // order, valid until the next step.
  std::span<const float> Step(std::span<const StepSequence> sequences);

  // false: every row runs through the KV-shared layers, as a test compares.
  void set_skip_unwanted_rows(bool skip) { skip_unwanted_rows_ = skip; }

 private:
  void Begin(std::span<const StepSequence> sequences);
  void Embed();
  void ReleaseTables();
  void KeepWantedRows(std::span<const StepSequence> sequences);
  void RunLayer(int layer_idx, std::span<const StepSequence> sequences);
  void RunMlp(const LayerWeights& w, int mlp_width);
  void AddPerLayerInput(int layer_idx, const LayerWeights& w);
  // h += rmsnorm(branch_, weight)
  void AddNormed(const std::vector<float>& weight);
  void Norm(const std::vector<float>& weight, const float* x, float* y) const;
  // x_ = rmsnorm(h_, weight), and input_ that.
  void NormInput(const std::vector<float>& weight);
  std::span<const float> Logits();
  int64_t n_rows() const { return static_cast<int64_t>(rows_.size()); }

  const Weights& weights_;
  const gemma::Config& config_;
  Ops ops_;
  Attention attention_;
  Moe moe_;
  std::vector<RopeTable> ropes_;  // one for each kind of layer
  std::vector<int> rope_of_layer_;
  bool skip_unwanted_rows_ = true;
  int64_t n_rows_held_ = 0;  // gathered since the tables' pages were let go of

  std::vector<int32_t> tokens_;  // [T]
  std::vector<Row> rows_;        // R: all T tokens, later the wanted ones
  std::vector<float> ple_;       // [T, L, P]
  std::vector<float> h_;         // [R, D], the residual stream
  std::vector<float> x_;         // [R, D], normed
  LinearInput input_;            // x_, or another input of linears
  std::vector<float> branch_;    // [R, D], what is added to h
  std::vector<float> moe_out_;   // [R, D]
  std::vector<float> gate_;      // [R, F]
  std::vector<float> up_;        // [R, F]
  std::vector<float> logits_;    // [rows wanted, V]
};

}  // namespace nibble::model
