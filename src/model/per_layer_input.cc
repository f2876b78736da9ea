#include "model/per_layer_input.h"

#include <cmath>

#include "base/float16.h"

namespace nibble::model {

float EmbeddingScale(int64_t width) {
  return RoundToBf16(static_cast<float>(std::sqrt(static_cast<double>(width))));
}

void ComputePerLayerInputs(const Ops& ops, const Weights& weights, std::span<const int32_t> tokens,
                           const float* embedded, std::vector<float>& out) {
  const gemma::Config& config = weights.config;
  const auto n_tokens = static_cast<int64_t>(tokens.size());
  const int64_t width = int64_t{config.n_layers()} * config.ple_width;
  out.resize(static_cast<size_t>(n_tokens * width));
  ops.Linear(weights.per_layer_model_projection, embedded, n_tokens, out.data());
  Scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.hidden_size))),
        n_tokens * width, out.data());
  ops.kernels.rms_norm(out.data(), weights.per_layer_projection_norm.data(),
                       n_tokens * config.n_layers(), config.ple_width, config.rms_norm_eps,
                       out.data());
  std::vector<float> row(static_cast<size_t>(width));
  for (int64_t t = 0; t < n_tokens; ++t) {
    weights.embed_tokens_per_layer.Gather(ops.kernels, tokens[t], EmbeddingScale(config.ple_width),
                                          row.data());
    Add(row.data(), width, out.data() + t * width);
  }
  Scale(static_cast<float>(1.0 / std::sqrt(2.0)), n_tokens * width, out.data());
}

}  // namespace nibble::model
