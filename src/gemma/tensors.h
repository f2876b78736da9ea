// Every tensor that a Gemma 4 checkpoint should hold: name, role and shape, derived from the
// config, and what each name found in a file is.
//
// Canonical names are those of the text-only form ("model.layers.0.self_attn.q_proj.weight");
// TextName() maps the multimodal spelling ("model.language_model.layers.0...") to them.
// Tested by tensors_test.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gemma/config.h"

namespace nibble::gemma {

// The part of the model that a tensor belongs to, as the anatomy lists them.
enum class Part { kBody, kPle, kVocabulary, kAudio, kVision };
std::string_view Name(Part part);

enum class Role {
  kTokenEmbedding,  // embed_tokens                     [V, D]
  kPleEmbedding,    // embed_tokens_per_layer           [V, L * P]
  kLmHead,          // lm_head, in untied checkpoints   [V, D]
  kLinear,          // every linear that QAT put on the grid, PLE projections included   [N, K]
  kExpertBank,      // experts.gate_up_proj [E, 2F, D], experts.down_proj [E, D, F]; no ".weight"
  kPlain,           // norms, layer_scalar, router: never quantised
};

struct TensorSpec {
  std::string name;  // canonical
  Role role = Role::kPlain;
  int layer_idx = -1;  // -1: not in a layer
  std::vector<int64_t> shape;
};

// All text tensors that a checkpoint of this config must hold, in forward order. Without the K/V of
// KV-shared layers, which are ignored when present (IsIgnoredLeftover).
std::vector<TensorSpec> ExpectedTensors(const Config& config);

// The canonical name of a text tensor; nothing for a tower's tensor.
std::optional<std::string> TextName(std::string_view source_name);

// The part of any tensor by its source name, canonical or not; nothing if the name is unknown.
std::optional<Part> PartOf(std::string_view source_name);

// True for k_proj, v_proj, k_norm (and v_norm) of KV-shared layers: older exports carry them,
// nothing reads them.
bool IsIgnoredLeftover(const Config& config, std::string_view canonical_name);

}  // namespace nibble::gemma
