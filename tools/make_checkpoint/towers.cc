#include "towers.h"

#include <string_view>
#include <utility>

namespace nibble::make_checkpoint {
namespace {

// Collects tensors of one tower; names are given without the prefix.
class Tower {
 public:
  Tower(std::string prefix, bool clips, std::vector<TowerTensor>& tensors)
      : prefix_(std::move(prefix)), clips_(clips), tensors_(tensors) {}

  void Add(std::string_view name, std::vector<int64_t> shape) {
    tensors_.push_back({.name = fmt::format("{}{}", prefix_, name), .shape = std::move(shape)});
  }
  void AddNorm(std::string_view module, int64_t width) {
    Add(fmt::format("{}.weight", module), {width});
  }
  void AddLayerNorm(std::string_view module, int64_t width) {
    AddNorm(module, width);
    Add(fmt::format("{}.bias", module), {width});
  }
  // A linear in a wrapper that clips its input and output, where use_clipped_linears says so.
  void AddLinear(std::string_view module, int64_t n, int64_t k) {
    if (clips_) {
      for (const char* bound : {"input_min", "input_max", "output_min", "output_max"}) {
        Add(fmt::format("{}.{}", module, bound), {});
      }
    }
    Add(fmt::format("{}.linear.weight", module), {n, k});
  }

 private:
  std::string prefix_;
  bool clips_;
  std::vector<TowerTensor>& tensors_;
};

int64_t Int(const Json& config, const char* key) { return config.at(key).get<int64_t>(); }

void AddVisionTower(const Json& vision, std::vector<TowerTensor>& tensors) {
  const int64_t d = Int(vision, "hidden_size");
  const int64_t f = Int(vision, "intermediate_size");
  const int64_t head_dim = Int(vision, "head_dim");
  const int64_t q_width = Int(vision, "num_attention_heads") * head_dim;
  const int64_t kv_width = Int(vision, "num_key_value_heads") * head_dim;
  const int64_t patch = Int(vision, "patch_size");
  const bool clips = vision.at("use_clipped_linears").get<bool>();

  Tower tower("model.vision_tower.", clips, tensors);
  if (vision.at("standardize").get<bool>()) {
    tower.Add("std_bias", {d});
    tower.Add("std_scale", {d});
  }
  tower.Add("patch_embedder.position_embedding_table",
            {2, Int(vision, "position_embedding_size"), d});
  tower.Add("patch_embedder.input_proj.weight", {d, 3 * patch * patch});
  for (int64_t i = 0; i < Int(vision, "num_hidden_layers"); ++i) {
    Tower layer(fmt::format("model.vision_tower.encoder.layers.{}.", i), clips, tensors);
    layer.AddLinear("self_attn.q_proj", q_width, d);
    layer.AddLinear("self_attn.k_proj", kv_width, d);
    layer.AddLinear("self_attn.v_proj", kv_width, d);
    layer.AddLinear("self_attn.o_proj", d, q_width);
    layer.AddNorm("self_attn.q_norm", head_dim);
    layer.AddNorm("self_attn.k_norm", head_dim);
    layer.AddLinear("mlp.gate_proj", f, d);
    layer.AddLinear("mlp.up_proj", f, d);
    layer.AddLinear("mlp.down_proj", d, f);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm",
                             "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
      layer.AddNorm(norm, d);
    }
  }
}

void AddAudioLayer(const Json& audio, Tower& layer) {
  const int64_t d = Int(audio, "hidden_size");
  for (const char* module : {"feed_forward1", "feed_forward2"}) {
    layer.AddLinear(fmt::format("{}.ffw_layer_1", module), 4 * d, d);
    layer.AddLinear(fmt::format("{}.ffw_layer_2", module), d, 4 * d);
    layer.AddNorm(fmt::format("{}.pre_layer_norm", module), d);
    layer.AddNorm(fmt::format("{}.post_layer_norm", module), d);
  }
  layer.Add("self_attn.per_dim_scale", {d / Int(audio, "num_attention_heads")});
  for (const char* module : {"q_proj", "k_proj", "v_proj", "post"}) {
    layer.AddLinear(fmt::format("self_attn.{}", module), d, d);
  }
  layer.Add("self_attn.relative_k_proj.weight", {d, d});
  layer.AddLinear("lconv1d.linear_start", 2 * d, d);
  layer.AddLinear("lconv1d.linear_end", d, d);
  layer.Add("lconv1d.depthwise_conv1d.weight", {d, 1, Int(audio, "conv_kernel_size")});
  layer.AddNorm("lconv1d.pre_layer_norm", d);
  layer.AddNorm("lconv1d.conv_norm", d);
  for (const char* norm : {"norm_pre_attn", "norm_post_attn", "norm_out"}) layer.AddNorm(norm, d);
}

void AddAudioTower(const Json& audio, std::vector<TowerTensor>& tensors) {
  constexpr int64_t kMelBins = 128;  // halved by each of two convolutions
  const int64_t d = Int(audio, "hidden_size");
  const int64_t out = Int(audio, "output_proj_dims");
  const auto c0 = audio.at("subsampling_conv_channels").at(0).get<int64_t>();
  const auto c1 = audio.at("subsampling_conv_channels").at(1).get<int64_t>();
  const bool clips = audio.at("use_clipped_linears").get<bool>();

  Tower tower("model.audio_tower.", clips, tensors);
  tower.Add("subsample_conv_projection.layer0.conv.weight", {c0, 1, 3, 3});
  tower.AddNorm("subsample_conv_projection.layer0.norm", c0);
  tower.Add("subsample_conv_projection.layer1.conv.weight", {c1, c0, 3, 3});
  tower.AddNorm("subsample_conv_projection.layer1.norm", c1);
  tower.Add("subsample_conv_projection.input_proj_linear.weight", {d, c1 * kMelBins / 4});
  for (int64_t i = 0; i < Int(audio, "num_hidden_layers"); ++i) {
    Tower layer(fmt::format("model.audio_tower.layers.{}.", i), clips, tensors);
    AddAudioLayer(audio, layer);
  }
  tower.Add("output_proj.weight", {out, d});
  tower.Add("output_proj.bias", {out});
}

void AddVisionEmbedder(const Json& vision, std::vector<TowerTensor>& tensors) {
  const int64_t d = Int(vision, "mm_embed_dim");
  const int64_t patch = Int(vision, "model_patch_size");
  const int64_t pixels = 3 * patch * patch;
  Tower embedder("model.vision_embedder.", /*clips=*/false, tensors);
  embedder.Add("pos_embedding", {Int(vision, "mm_posemb_size"), 2, d});
  embedder.AddLayerNorm("patch_ln1", pixels);
  embedder.Add("patch_dense.weight", {d, pixels});
  embedder.Add("patch_dense.bias", {d});
  embedder.AddLayerNorm("patch_ln2", d);
  embedder.AddLayerNorm("pos_norm", d);
}

}  // namespace

std::vector<TowerTensor> TowerTensors(const gemma::Config& config) {
  std::vector<TowerTensor> tensors;
  if (config.layout == gemma::Layout::kTextOnly) return tensors;
  const bool is_unified = config.layout == gemma::Layout::kUnified;
  const Json& vision = config.json.at("vision_config");
  const Json& audio = config.json.at("audio_config");
  const int64_t d = config.hidden_size;
  if (is_unified) {
    AddVisionEmbedder(vision, tensors);
  } else {
    AddVisionTower(vision, tensors);
  }
  tensors.push_back({.name = "model.embed_vision.embedding_projection.weight",
                     .shape = {d, Int(vision, is_unified ? "output_proj_dims" : "hidden_size")}});
  if (audio.is_null()) return tensors;
  if (!is_unified) AddAudioTower(audio, tensors);
  tensors.push_back({.name = "model.embed_audio.embedding_projection.weight",
                     .shape = {d, Int(audio, "output_proj_dims")}});
  return tensors;
}

}  // namespace nibble::make_checkpoint
