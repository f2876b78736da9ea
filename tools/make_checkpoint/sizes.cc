#include "sizes.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace nibble::make_checkpoint {
namespace {

enum class Senses {
  kSmallVisionAndAudio,  // E2B, E4B
  kUnified,              // 12B: an embedder of patches instead of towers
  kLargeVision,          // 26B, 31B
};

struct Size {
  std::string_view name;
  Senses senses;
  int n_layers;
  int full_every;
  int hidden_size;
  int mlp_width;
  int n_heads;
  int n_kv_heads;
  int n_global_kv_heads;  // 0: as on the sliding layers; else full layers have K = V
  int n_shared_layers;    // last layers, which read others' KV
  bool double_wide_when_shared;
  int ple_width;
  int n_experts;  // 0: dense
};

constexpr std::array kSizes = {
    Size{"e2b", Senses::kSmallVisionAndAudio, 35, 5, 1536, 6144, 8, 1, 0, 20, true, 256, 0},
    Size{"e4b", Senses::kSmallVisionAndAudio, 42, 6, 2560, 10240, 8, 2, 0, 18, false, 256, 0},
    Size{"12b", Senses::kUnified, 48, 6, 3840, 15360, 16, 8, 1, 0, false, 0, 0},
    Size{"26b-a4b", Senses::kLargeVision, 30, 6, 2816, 2112, 16, 8, 2, 0, false, 0, 128},
    Size{"31b", Senses::kLargeVision, 60, 6, 5376, 21504, 32, 16, 4, 0, false, 0, 0},
};

constexpr int kVocabSize = 262'144;
constexpr int kTopKExperts = 8;
constexpr int kMoeWidth = 704;
constexpr std::string_view kTransformersVersion = "5.5.0";

Json OrNull(int value) { return value == 0 ? Json(nullptr) : Json(value); }

Json LayerTypes(const Size& size, int n_layers, int n_shared) {
  Json types = Json::array();
  for (int i = 0; i < n_layers; ++i) {
    const bool is_full =
        (i + 1) % size.full_every == 0 || i == n_layers - n_shared - 1 || i == n_layers - 1;
    types.push_back(is_full ? "full_attention" : "sliding_attention");
  }
  return types;
}

Json RopeParameters() {
  return {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10'000.0}}},
          {"full_attention",
           {{"rope_type", "proportional"},
            {"partial_rotary_factor", 0.25},
            {"rope_theta", 1'000'000.0}}}};
}

Json TextConfig(const Size& size, const Cuts& cuts) {
  const int n_layers = cuts.n_layers.value_or(size.n_layers);
  const int n_shared = size.n_shared_layers * n_layers / size.n_layers;
  const int n_experts = size.n_experts > 0 ? cuts.n_experts.value_or(size.n_experts) : 0;
  const int vocab_size = cuts.vocab_size.value_or(kVocabSize);
  const bool is_unified = size.senses == Senses::kUnified && !cuts.text_only;
  const bool is_small = size.senses == Senses::kSmallVisionAndAudio;
  return {{"attention_bias", false},
          {"attention_dropout", 0.0},
          {"attention_k_eq_v", size.n_global_kv_heads > 0},
          {"bos_token_id", 2},
          {"dtype", "bfloat16"},
          {"enable_moe_block", n_experts > 0},
          {"eos_token_id", 1},
          {"final_logit_softcapping", 30.0},
          {"global_head_dim", 512},
          {"head_dim", 256},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"hidden_size", size.hidden_size},
          {"hidden_size_per_layer_input", size.ple_width},
          {"initializer_range", 0.02},
          {"intermediate_size", size.mlp_width},
          {"layer_types", LayerTypes(size, n_layers, n_shared)},
          {"max_position_embeddings", is_small ? 131'072 : 262'144},
          {"model_type", is_unified ? "gemma4_unified_text" : "gemma4_text"},
          {"moe_intermediate_size", OrNull(n_experts > 0 ? kMoeWidth : 0)},
          {"num_attention_heads", size.n_heads},
          {"num_experts", OrNull(n_experts)},
          {"num_global_key_value_heads", OrNull(size.n_global_kv_heads)},
          {"num_hidden_layers", n_layers},
          {"num_key_value_heads", size.n_kv_heads},
          {"num_kv_shared_layers", n_shared},
          {"pad_token_id", 0},
          {"rms_norm_eps", 1e-6},
          {"rope_parameters", RopeParameters()},
          {"sliding_window", is_small ? 512 : 1024},
          {"tie_word_embeddings", true},
          {"top_k_experts", OrNull(std::min(n_experts, kTopKExperts))},
          {"use_bidirectional_attention", is_small ? Json(nullptr) : Json("vision")},
          {"use_cache", true},
          {"use_double_wide_mlp", size.double_wide_when_shared},
          {"vocab_size", vocab_size},
          {"vocab_size_per_layer_input", vocab_size}};
}

Json TowerVisionConfig(bool is_large, const Cuts& cuts) {
  const int n_layers = is_large ? 27 : 16;
  const int n_heads = is_large ? 16 : 12;
  const int head_dim = is_large ? 72 : 64;
  return {{"attention_bias", false},
          {"attention_dropout", 0.0},
          {"default_output_length", 280},
          {"dtype", "bfloat16"},
          {"global_head_dim", head_dim},
          {"head_dim", head_dim},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"hidden_size", n_heads * head_dim},
          {"initializer_range", 0.02},
          {"intermediate_size", is_large ? 4304 : 3072},
          {"max_position_embeddings", 131'072},
          {"model_type", "gemma4_vision"},
          {"num_attention_heads", n_heads},
          {"num_hidden_layers", std::min(n_layers, cuts.n_layers.value_or(n_layers))},
          {"num_key_value_heads", n_heads},
          {"patch_size", 16},
          {"pooling_kernel_size", 3},
          {"position_embedding_size", 10'240},
          {"rms_norm_eps", 1e-6},
          {"rope_parameters", {{"rope_theta", 100.0}, {"rope_type", "default"}}},
          {"standardize", is_large},
          {"use_clipped_linears", !is_large}};
}

Json TowerAudioConfig(const Cuts& cuts) {
  const int n_layers = 12;
  return {{"attention_chunk_size", 12},
          {"attention_context_left", 13},
          {"attention_context_right", 0},
          {"attention_invalid_logits_value", -1e9},
          {"attention_logit_cap", 50.0},
          {"conv_kernel_size", 5},
          {"dtype", "bfloat16"},
          {"gradient_clipping", 1e10},
          {"hidden_act", "silu"},
          {"hidden_size", 1024},
          {"initializer_range", 0.02},
          {"model_type", "gemma4_audio"},
          {"num_attention_heads", 8},
          {"num_hidden_layers", std::min(n_layers, cuts.n_layers.value_or(n_layers))},
          {"output_proj_dims", 1536},
          {"residual_weight", 0.5},
          {"rms_norm_eps", 1e-6},
          {"subsampling_conv_channels", {128, 32}},
          {"use_clipped_linears", true}};
}

Json UnifiedVisionConfig() {
  return {{"dtype", "bfloat16"},    {"initializer_range", 0.02},
          {"mm_embed_dim", 3840},   {"mm_posemb_size", 1120},
          {"model_patch_size", 48}, {"model_type", "gemma4_unified_vision"},
          {"num_soft_tokens", 280}, {"output_proj_dims", 3840},
          {"patch_size", 16},       {"pooling_kernel_size", 3},
          {"rms_norm_eps", 1e-6}};
}

Json UnifiedAudioConfig() {
  return {{"audio_embed_dim", 640},    {"audio_samples_per_token", 640},
          {"dtype", "bfloat16"},       {"hidden_size", 640},
          {"initializer_range", 0.02}, {"model_type", "gemma4_unified_audio"},
          {"output_proj_dims", 640},   {"rms_norm_eps", 1e-6}};
}

Json MultimodalConfig(const Size& size, const Cuts& cuts) {
  const bool is_unified = size.senses == Senses::kUnified;
  Json config = {
      {"architectures",
       {is_unified ? "Gemma4UnifiedForConditionalGeneration" : "Gemma4ForConditionalGeneration"}},
      {"audio_token_id", 258'881},
      {"boa_token_id", 256'000},
      {"boi_token_id", 255'999},
      {"dtype", "bfloat16"},
      {"eoa_token_id", 258'883},
      {"eoa_token_index", 258'883},
      {"eoi_token_id", 258'882},
      {"eos_token_id", {1, 106}},
      {"image_token_id", 258'880},
      {"initializer_range", 0.02},
      {"model_type", is_unified ? "gemma4_unified" : "gemma4"},
      {"text_config", TextConfig(size, cuts)},
      {"tie_word_embeddings", true},
      {"transformers_version", kTransformersVersion},
      {"video_token_id", 258'884},
      {"vision_soft_tokens_per_image", 280}};
  switch (size.senses) {
    case Senses::kSmallVisionAndAudio:
      config["vision_config"] = TowerVisionConfig(/*is_large=*/false, cuts);
      config["audio_config"] = TowerAudioConfig(cuts);
      break;
    case Senses::kUnified:
      config["vision_config"] = UnifiedVisionConfig();
      config["audio_config"] = UnifiedAudioConfig();
      break;
    case Senses::kLargeVision:
      config["vision_config"] = TowerVisionConfig(/*is_large=*/true, cuts);
      config["audio_config"] = nullptr;
      break;
  }
  return config;
}

Status CheckCut(std::string_view what, std::optional<int> cut, int min, int max) {
  if (cut && (*cut < min || *cut > max)) {
    return Fail("{}: expected {} to {}, found {}", what, min, max, *cut);
  }
  return {};
}

}  // namespace

std::vector<std::string> SizeNames() {
  std::vector<std::string> names;
  for (const Size& size : kSizes) names.emplace_back(size.name);
  return names;
}

Result<Json> MakeConfig(std::string_view name, const Cuts& cuts) {
  const auto* size = std::ranges::find(kSizes, name, &Size::name);
  CHECK(size != kSizes.end());
  NIBBLE_RETURN_IF_ERROR(
      CheckCut("--layers", cuts.n_layers, size->n_shared_layers > 0 ? 4 : 1, size->n_layers));
  NIBBLE_RETURN_IF_ERROR(CheckCut("--vocab", cuts.vocab_size, 1, kVocabSize));
  NIBBLE_RETURN_IF_ERROR(CheckCut("--experts", cuts.n_experts, 1, std::max(1, size->n_experts)));
  if (!cuts.text_only) return MultimodalConfig(*size, cuts);
  Json config = TextConfig(*size, cuts);
  config["architectures"] = {"Gemma4ForCausalLM"};
  config["eos_token_id"] = {1, 106};
  config["transformers_version"] = kTransformersVersion;
  return config;
}

Json MakeGenerationConfig() {
  return {{"bos_token_id", 2},
          {"do_sample", true},
          {"eos_token_id", {1, 106, 50}},
          {"pad_token_id", 0},
          {"temperature", 1.0},
          {"top_k", 64},
          {"top_p", 0.95},
          {"transformers_version", kTransformersVersion}};
}

}  // namespace nibble::make_checkpoint
