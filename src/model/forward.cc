#include "model/forward.h"

#include <algorithm>

#include "base/check.h"
#include "model/per_layer_input.h"

namespace nibble::model {

Forward::Forward(const Weights& weights, const KvCache& cache, const Ops& ops)
    : weights_(weights),
      config_(weights.config),
      ops_(ops),
      attention_(ops_, config_, cache),
      moe_(ops_, config_) {
  for (const gemma::LayerConfig& layer : config_.layers) {
    const auto rope = std::ranges::find_if(ropes_, [&](const auto& r) { return r.Fits(layer); });
    rope_of_layer_.push_back(static_cast<int>(rope - ropes_.begin()));
    if (rope == ropes_.end()) ropes_.emplace_back(layer);
  }
}

std::span<const float> Forward::Step(std::span<const StepSequence> sequences) {
  Begin(sequences);
  Embed();
  if (config_.ple_width > 0) {
    ComputePerLayerInputs(ops_, weights_, tokens_, h_.data(), ple_);
  }
  ReleaseTables();
  const int first_shared = skip_unwanted_rows_ ? config_.first_shared_layer() : config_.n_layers();
  for (int i = 0; i < first_shared; ++i) RunLayer(i, sequences);
  KeepWantedRows(sequences);
  for (int i = first_shared; i < config_.n_layers(); ++i) RunLayer(i, sequences);
  for (const StepSequence& sequence : sequences) sequence.kv->Commit(sequence.tokens);
  return Logits();
}

void Forward::Begin(std::span<const StepSequence> sequences) {
  tokens_.clear();
  rows_.clear();
  for (size_t s = 0; s < sequences.size(); ++s) {
    const StepSequence& sequence = sequences[s];
    const auto n_new = static_cast<int64_t>(sequence.tokens.size());
    CHECK(n_new > 0 && sequence.n_logits >= 0 && sequence.n_logits <= n_new);
    for (int64_t i = 0; i < n_new; ++i) {
      CHECK(sequence.tokens[i] >= 0 && sequence.tokens[i] < weights_.n_token_ids());
      rows_.push_back({.seq_idx = static_cast<int>(s),
                       .token_idx = static_cast<int>(tokens_.size()),
                       .position = sequence.kv->n_tokens() + i});
      tokens_.push_back(sequence.tokens[i]);
    }
    CHECK(sequence.kv->Reserve(n_new));  // as the engine has before, within its budget
  }
  for (RopeTable& rope : ropes_) rope.Fill(rows_);
}

void Forward::Embed() {
  h_.resize(static_cast<size_t>(n_rows()) * config_.hidden_size);
  for (int64_t r = 0; r < n_rows(); ++r) {
    weights_.embed_tokens.Gather(ops_.kernels, tokens_[r], EmbeddingScale(config_.hidden_size),
                                 h_.data() + r * config_.hidden_size);
  }
}

void Forward::ReleaseTables() {
  constexpr int64_t kMostHeld = 64;  // a row may hold 256 KiB, and to let go interrupts all cores
  n_rows_held_ += n_rows();
  if (n_rows_held_ < kMostHeld) return;
  n_rows_held_ = 0;
  weights_.embed_tokens.ReleaseRows();
  weights_.embed_tokens_per_layer.ReleaseRows();
}

void Forward::KeepWantedRows(std::span<const StepSequence> sequences) {
  const int64_t hidden = config_.hidden_size;
  int64_t kept = 0;
  int first = 0;  // row of the sequence's first token
  for (const StepSequence& sequence : sequences) {
    const int end = first + static_cast<int>(sequence.tokens.size());
    for (int row = end - sequence.n_logits; row < end; ++row, ++kept) {
      std::copy_n(h_.begin() + row * hidden, hidden, h_.begin() + kept * hidden);
      rows_[kept] = rows_[row];
    }
    first = end;
  }
  rows_.resize(static_cast<size_t>(kept));
  h_.resize(static_cast<size_t>(kept * hidden));
}

void Forward::RunLayer(int layer_idx, std::span<const StepSequence> sequences) {
  if (rows_.empty()) return;
  const LayerWeights& w = weights_.layers[layer_idx];
  const RopeTable& rope = ropes_[rope_of_layer_[layer_idx]];
  x_.resize(h_.size());
  branch_.resize(h_.size());

  NormInput(w.input_layernorm);
  attention_.Run(layer_idx, w, sequences, rows_, rope, input_, branch_.data());
  AddNormed(w.post_attention_layernorm);

  NormInput(w.pre_feedforward_layernorm);
  RunMlp(w, config_.layers[layer_idx].mlp_width);
  if (config_.n_experts > 0) {
    Norm(w.post_feedforward_layernorm_1, branch_.data(), branch_.data());
    Norm(w.pre_feedforward_layernorm_2, h_.data(), x_.data());
    moe_out_.resize(h_.size());
    moe_.Run(w, h_.data(), x_.data(), n_rows(), moe_out_.data());
    Norm(w.post_feedforward_layernorm_2, moe_out_.data(), moe_out_.data());
    Add(moe_out_.data(), static_cast<int64_t>(h_.size()), branch_.data());
  }
  AddNormed(w.post_feedforward_layernorm);

  if (config_.ple_width > 0) AddPerLayerInput(layer_idx, w);
  Scale(w.layer_scalar, static_cast<int64_t>(h_.size()), h_.data());
}

void Forward::RunMlp(const LayerWeights& w, int mlp_width) {
  gate_.resize(static_cast<size_t>(n_rows()) * mlp_width);
  up_.resize(gate_.size());
  ops_.Linear(w.gate_proj, input_, gate_.data());
  ops_.Linear(w.up_proj, input_, up_.data());
  // An exponential costs about as much as ten multiplications.
  const auto n = static_cast<int64_t>(gate_.size());
  ops_.Split(n, n * 10, [&](int64_t begin, int64_t end) {
    ops_.kernels.gelu_mul(gate_.data() + begin, up_.data() + begin, end - begin,
                          gate_.data() + begin);
  });
  input_.Assign(gate_.data(), n_rows(), mlp_width);
  ops_.Linear(w.down_proj, input_, branch_.data());
}

void Forward::AddPerLayerInput(int layer_idx, const LayerWeights& w) {
  const int64_t width = config_.ple_width;
  gate_.resize(static_cast<size_t>(n_rows() * width));
  input_.Assign(h_.data(), n_rows(), config_.hidden_size);
  ops_.Linear(w.per_layer_input_gate, input_, gate_.data());
  for (int64_t r = 0; r < n_rows(); ++r) {
    const float* input =
        ple_.data() + (rows_[r].token_idx * config_.n_layers() + layer_idx) * width;
    ops_.kernels.gelu_mul(gate_.data() + r * width, input, width, gate_.data() + r * width);
  }
  input_.Assign(gate_.data(), n_rows(), width);
  ops_.Linear(w.per_layer_projection, input_, branch_.data());
  AddNormed(w.post_per_layer_input_norm);
}

void Forward::AddNormed(const std::vector<float>& weight) {
  Norm(weight, branch_.data(), branch_.data());
  Add(branch_.data(), static_cast<int64_t>(h_.size()), h_.data());
}

void Forward::Norm(const std::vector<float>& weight, const float* x, float* y) const {
  const int64_t width = config_.hidden_size;
  ops_.Split(n_rows(), n_rows() * width * 4, [&](int64_t begin, int64_t end) {
    ops_.kernels.rms_norm(x + begin * width, weight.data(), end - begin, width,
                          config_.rms_norm_eps, y + begin * width);
  });
}

void Forward::NormInput(const std::vector<float>& weight) {
  Norm(weight, h_.data(), x_.data());
  input_.Assign(x_.data(), n_rows(), config_.hidden_size);
}

std::span<const float> Forward::Logits() {
  x_.resize(h_.size());
  logits_.resize(static_cast<size_t>(n_rows()) * config_.vocab_size);
  NormInput(weights_.norm);
  ops_.Linear(weights_.lm_head, input_, logits_.data());
  if (config_.final_logit_softcapping > 0) {
    const auto n = static_cast<int64_t>(logits_.size());
    ops_.Split(n, n * 10, [&](int64_t begin, int64_t end) {
      ops_.kernels.softcap(logits_.data() + begin, end - begin, config_.final_logit_softcapping);
    });
  }
  return logits_;
}

}  // namespace nibble::model
