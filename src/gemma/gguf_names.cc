// Tensor names of GGUF files.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "gemma/gguf.h"

namespace nibble::gemma {
namespace {

struct NamePair {
  std::string_view canonical;
  std::string_view gguf;
};

constexpr std::array kModelNames = {
    NamePair{"model.embed_tokens.weight", "token_embd.weight"},
    NamePair{"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    NamePair{"model.per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    NamePair{"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
    NamePair{"model.norm.weight", "output_norm.weight"},
    NamePair{"lm_head.weight", "output.weight"},
};

// After "model.layers.N." and "blk.N.".
constexpr std::array kLayerNames = {
    NamePair{"input_layernorm.weight", "attn_norm.weight"},
    NamePair{"self_attn.q_proj.weight", "attn_q.weight"},
    NamePair{"self_attn.q_norm.weight", "attn_q_norm.weight"},
    NamePair{"self_attn.k_proj.weight", "attn_k.weight"},
    NamePair{"self_attn.k_norm.weight", "attn_k_norm.weight"},
    NamePair{"self_attn.v_proj.weight", "attn_v.weight"},
    NamePair{"self_attn.o_proj.weight", "attn_output.weight"},
    NamePair{"post_attention_layernorm.weight", "post_attention_norm.weight"},
    NamePair{"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    NamePair{"mlp.gate_proj.weight", "ffn_gate.weight"},
    NamePair{"mlp.up_proj.weight", "ffn_up.weight"},
    NamePair{"mlp.down_proj.weight", "ffn_down.weight"},
    NamePair{"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    NamePair{"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    NamePair{"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
    NamePair{"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    NamePair{"router.proj.weight", "ffn_gate_inp.weight"},
    NamePair{"router.scale", "ffn_gate_inp.scale"},
    NamePair{"router.per_expert_scale", "ffn_down_exps.scale"},
    NamePair{"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    NamePair{"experts.down_proj", "ffn_down_exps.weight"},
    NamePair{"per_layer_input_gate.weight", "inp_gate.weight"},
    NamePair{"per_layer_projection.weight", "proj.weight"},
    NamePair{"post_per_layer_input_norm.weight", "post_norm.weight"},
    NamePair{"layer_scalar", "layer_output_scale.weight"},
};

constexpr std::string_view kCanonicalLayers = "model.layers.";
constexpr std::string_view kGgufLayers = "blk.";

using Side = std::string_view NamePair::*;

template <size_t N>
std::optional<std::string> Translate(const std::array<NamePair, N>& pairs, std::string_view name,
                                     Side from, Side to) {
  const auto* const found = std::ranges::find(pairs, name, from);
  if (found == pairs.end()) return std::nullopt;
  return std::string(*found.*to);
}

std::optional<std::string> Translate(std::string_view name, Side from, Side to,
                                     std::string_view from_layers, std::string_view to_layers) {
  if (!name.starts_with(from_layers)) return Translate(kModelNames, name, from, to);
  const std::string_view rest = name.substr(from_layers.size());
  const size_t n_digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (n_digits == 0 || n_digits == rest.size() || rest[n_digits] != '.') return std::nullopt;
  const auto module = Translate(kLayerNames, rest.substr(n_digits + 1), from, to);
  if (!module.has_value()) return std::nullopt;
  return fmt::format("{}{}.{}", to_layers, rest.substr(0, n_digits), *module);
}

}  // namespace

std::optional<std::string> GgufName(std::string_view canonical_name) {
  return Translate(canonical_name, &NamePair::canonical, &NamePair::gguf, kCanonicalLayers,
                   kGgufLayers);
}

std::optional<std::string> CanonicalName(std::string_view gguf_name) {
  return Translate(gguf_name, &NamePair::gguf, &NamePair::canonical, kGgufLayers, kCanonicalLayers);
}

}  // namespace nibble::gemma
