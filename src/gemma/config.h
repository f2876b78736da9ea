// Gemma 4's architecture as data: config.json turned into per-layer facts, so that no other room
// knows model sizes or config spellings.
//
// Accepts the multimodal layouts (Gemma4ForConditionalGeneration,
// Gemma4UnifiedForConditionalGeneration: nested text_config) and the text-only one
// (Gemma4ForCausalLM: flat), with global_head_dim / num_global_key_value_heads or with
// per_layer_config. Unknown architectures, activations, rope types or contradicting facts are
// errors that name the key. Source: transformers, models/gemma4/configuration_gemma4.py. Tested by
// config_test.cc.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace nibble::gemma {

enum class Layout {
  kMultimodal,  // Gemma4ForConditionalGeneration: names model.language_model.*, two towers
  kUnified,     // Gemma4UnifiedForConditionalGeneration (12B): small vision embedder
  kTextOnly,    // Gemma4ForCausalLM: names model.*
};

struct LayerConfig {
  bool is_sliding = false;  // sees itself and the sliding_window - 1 tokens before
  int head_dim = 0;         // C
  int n_kv_heads = 0;       // J
  int kv_owner_layer =
      0;                  // whose KV cache this layer reads: itself, or an earlier one (KV sharing)
  bool k_eq_v = false;    // no v_proj: V = v_norm(k_proj(x))
  int mlp_width = 0;      // F
  double rope_theta = 0;  // frequency of pair j: rope_theta^(-2j / head_dim)
  int n_rotating_pairs = 0;  // pairs 0 .. n-1 of head_dim / 2 turn
};

struct Config {
  Layout layout = Layout::kTextOnly;
  int hidden_size = 0;              // D
  int n_heads = 0;                  // H
  int vocab_size = 0;               // V
  int sliding_window = 0;           // tokens
  int ple_width = 0;                // P; 0: no per-layer embeddings
  int ple_vocab_size = 0;           // rows of embed_tokens_per_layer
  int max_position_embeddings = 0;  // tokens
  float rms_norm_eps = 0;
  float final_logit_softcapping = 0;  // 0: none
  bool tie_word_embeddings = true;
  int n_experts = 0;  // E; 0: dense
  int top_k_experts = 0;
  int moe_width = 0;
  std::vector<LayerConfig> layers;
  Json json;  // the file as read

  int n_layers() const { return static_cast<int>(layers.size()); }
  bool OwnsKv(int layer_idx) const { return layers[layer_idx].kv_owner_layer == layer_idx; }
  // First of the trailing layers that read other layers' KV; n_layers() if there are none.
  int first_shared_layer() const;
};

// `where` begins error messages.
Result<Config> ParseConfig(Json json, std::string_view where);

// Reads DIR/config.json.
Result<Config> ReadConfig(const std::filesystem::path& dir);

}  // namespace nibble::gemma
