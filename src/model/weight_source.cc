#include "model/weight_source.h"

#include <string_view>

#include "base/check.h"

namespace nibble::model {
namespace {

using kernels::PackedWeight;

Status Bind(WeightSource& source, const std::string& name, PackedWeight& weight) {
  return source.BindMatrix(name, weight);
}
Status Bind(WeightSource& source, const std::string& name, std::vector<PackedWeight>& bank) {
  return source.BindExperts(name, bank);
}
Status Bind(WeightSource& source, const std::string& name, std::vector<float>& values) {
  return source.BindFloats(name, values);
}
Status Bind(WeightSource& source, const std::string& name, float& value) {
  std::vector<float> values;
  NIBBLE_RETURN_IF_ERROR(source.BindFloats(name, values));
  CHECK(values.size() == 1);
  value = values[0];
  return {};
}

Status BindMoe(WeightSource& source, const std::string& prefix, LayerWeights& w) {
  NIBBLE_RETURN_IF_ERROR(Bind(source, prefix + "router.proj.weight", w.router_proj));
  NIBBLE_RETURN_IF_ERROR(Bind(source, prefix + "router.scale", w.router_scale));
  NIBBLE_RETURN_IF_ERROR(Bind(source, prefix + "router.per_expert_scale", w.per_expert_scale));
  NIBBLE_RETURN_IF_ERROR(Bind(source, prefix + "experts.gate_up_proj", w.expert_gate_up));
  NIBBLE_RETURN_IF_ERROR(Bind(source, prefix + "experts.down_proj", w.expert_down));
  NIBBLE_RETURN_IF_ERROR(
      Bind(source, prefix + "pre_feedforward_layernorm_2.weight", w.pre_feedforward_layernorm_2));
  NIBBLE_RETURN_IF_ERROR(
      Bind(source, prefix + "post_feedforward_layernorm_1.weight", w.post_feedforward_layernorm_1));
  return Bind(source, prefix + "post_feedforward_layernorm_2.weight",
              w.post_feedforward_layernorm_2);
}

Status BindLayer(WeightSource& source, const gemma::Config& config, int layer_idx,
                 LayerWeights& w) {
  const std::string prefix = fmt::format("model.layers.{}.", layer_idx);
  const auto bind = [&](std::string_view name, auto& place) {
    return Bind(source, prefix + std::string(name) + ".weight", place);
  };
  NIBBLE_RETURN_IF_ERROR(bind("input_layernorm", w.input_layernorm));
  NIBBLE_RETURN_IF_ERROR(bind("self_attn.q_proj", w.q_proj));
  NIBBLE_RETURN_IF_ERROR(bind("self_attn.o_proj", w.o_proj));
  NIBBLE_RETURN_IF_ERROR(bind("self_attn.q_norm", w.q_norm));
  if (config.OwnsKv(layer_idx)) {
    NIBBLE_RETURN_IF_ERROR(bind("self_attn.k_proj", w.k_proj));
    NIBBLE_RETURN_IF_ERROR(bind("self_attn.k_norm", w.k_norm));
    if (!config.layers[layer_idx].k_eq_v) {
      NIBBLE_RETURN_IF_ERROR(bind("self_attn.v_proj", w.v_proj));
    }
  }
  NIBBLE_RETURN_IF_ERROR(bind("post_attention_layernorm", w.post_attention_layernorm));
  NIBBLE_RETURN_IF_ERROR(bind("pre_feedforward_layernorm", w.pre_feedforward_layernorm));
  NIBBLE_RETURN_IF_ERROR(bind("mlp.gate_proj", w.gate_proj));
  NIBBLE_RETURN_IF_ERROR(bind("mlp.up_proj", w.up_proj));
  NIBBLE_RETURN_IF_ERROR(bind("mlp.down_proj", w.down_proj));
  NIBBLE_RETURN_IF_ERROR(bind("post_feedforward_layernorm", w.post_feedforward_layernorm));
  NIBBLE_RETURN_IF_ERROR(Bind(source, prefix + "layer_scalar", w.layer_scalar));
  if (config.ple_width > 0) {
    NIBBLE_RETURN_IF_ERROR(bind("per_layer_input_gate", w.per_layer_input_gate));
    NIBBLE_RETURN_IF_ERROR(bind("per_layer_projection", w.per_layer_projection));
    NIBBLE_RETURN_IF_ERROR(bind("post_per_layer_input_norm", w.post_per_layer_input_norm));
  }
  return config.n_experts > 0 ? BindMoe(source, prefix, w) : Status{};
}

}  // namespace

Status BindAll(WeightSource& source, std::string_view where, Weights* weights) {
  const gemma::Config& config = weights->config;
  for (const gemma::LayerConfig& layer : config.layers) {
    if (layer.head_dim % kernels::kHeadDimMultiple != 0) {
      return Fail("{}: head_dim {}: expected a multiple of {}", where, layer.head_dim,
                  kernels::kHeadDimMultiple);
    }
  }
  const std::string embed_name = "model.embed_tokens.weight";
  NIBBLE_RETURN_IF_ERROR(source.BindTable(embed_name, weights->embed_tokens));
  if (config.ple_width > 0) {
    NIBBLE_RETURN_IF_ERROR(
        source.BindTable("model.embed_tokens_per_layer.weight", weights->embed_tokens_per_layer));
    NIBBLE_RETURN_IF_ERROR(source.BindMatrix("model.per_layer_model_projection.weight",
                                             weights->per_layer_model_projection));
    NIBBLE_RETURN_IF_ERROR(source.BindFloats("model.per_layer_projection_norm.weight",
                                             weights->per_layer_projection_norm));
  }
  weights->layers.resize(static_cast<size_t>(config.n_layers()));
  for (int i = 0; i < config.n_layers(); ++i) {
    NIBBLE_RETURN_IF_ERROR(BindLayer(source, config, i, weights->layers[i]));
  }
  NIBBLE_RETURN_IF_ERROR(source.BindFloats("model.norm.weight", weights->norm));
  NIBBLE_RETURN_IF_ERROR(source.BindMatrix(
      config.tie_word_embeddings ? embed_name : "lm_head.weight", weights->lm_head));
  return source.CheckNothingLeft();
}

}  // namespace nibble::model
