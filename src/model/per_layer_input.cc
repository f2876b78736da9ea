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
  LinearInput input;
  input.Assign(embedded, n_tokens, config.hidden_size);
  ops.Linear(weights.per_layer_model_projection, input, out.data());
  const auto projection_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.hidden_size)));
  ops.Split(n_tokens, n_tokens * width * 8, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(width));
    for (int64_t t = begin; t < end; ++t) {
      float* inputs = out.data() + t * width;
      Scale(projection_scale, width, inputs);
      ops.kernels.rms_norm(inputs, weights.per_layer_projection_norm.data(), config.n_layers(),
                           config.ple_width, config.rms_norm_eps, inputs);
      weights.embed_tokens_per_layer.Gather(ops.kernels, tokens[t],
                                            EmbeddingScale(config.ple_width), row.data());
      Add(row.data(), width, inputs);
      Scale(static_cast<float>(1.0 / std::sqrt(2.0)), width, inputs);
    }
  });
}

}  // namespace nibble::model
