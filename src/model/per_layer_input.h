// Per-layer embeddings (PLE): what each token adds to each layer, from a table of its own and from
// the token embedding. Mirrors get_per_layer_inputs and project_per_layer_inputs of transformers'
// Gemma4TextModel. Tested by per_layer_input_test.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/ops.h"
#include "model/weights.h"

namespace nibble::model {

// tokens: T ids; embedded: [T, D], scaled token embeddings. out becomes [T, L, P].
void ComputePerLayerInputs(const Ops& ops, const Weights& weights, std::span<const int32_t> tokens,
                           const float* embedded, std::vector<float>& out);

// The factor that an embedding table of this width is scaled by: sqrt(width), rounded to bf16 as
// the reference does for bf16 checkpoints.
float EmbeddingScale(int64_t width);

}  // namespace nibble::model
