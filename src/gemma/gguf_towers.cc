#include "gemma/gguf_towers.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>

namespace nibble::gemma {
namespace {

using checkpoint::GgmlType;
using checkpoint::GgufEntry;
using checkpoint::GgufTensor;

constexpr const char* kVision = "vision_config";
constexpr const char* kAudio = "audio_config";

struct TowerName {
  std::string_view source;
  std::string_view gguf;
};

// Linears that may clip their inputs and outputs: "X.linear.weight" in the source.
constexpr TowerName kVisionLinears[] = {
    {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"}, {"self_attn.o_proj", "attn_out"},
    {"mlp.gate_proj", "ffn_gate"},  {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
};
constexpr TowerName kVisionWeights[] = {
    {"self_attn.q_norm", "attn_q_norm"},  {"self_attn.k_norm", "attn_k_norm"},
    {"input_layernorm", "ln1"},           {"post_attention_layernorm", "attn_post_norm"},
    {"pre_feedforward_layernorm", "ln2"}, {"post_feedforward_layernorm", "ffn_post_norm"},
};
constexpr TowerName kAudioLinears[] = {
    {"feed_forward1.ffw_layer_1", "ffn_up"},
    {"feed_forward1.ffw_layer_2", "ffn_down"},
    {"feed_forward2.ffw_layer_1", "ffn_up_1"},
    {"feed_forward2.ffw_layer_2", "ffn_down_1"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.post", "attn_out"},
    {"lconv1d.linear_start", "conv_pw1"},
    {"lconv1d.linear_end", "conv_pw2"},
};
// norm_conv and conv_norm change places in llama.cpp.
constexpr TowerName kAudioWeights[] = {
    {"feed_forward1.pre_layer_norm", "ffn_norm"},
    {"feed_forward1.post_layer_norm", "ffn_post_norm"},
    {"feed_forward2.pre_layer_norm", "ffn_norm_1"},
    {"feed_forward2.post_layer_norm", "ffn_post_norm_1"},
    {"norm_pre_attn", "attn_pre_norm"},
    {"norm_post_attn", "attn_post_norm"},
    {"norm_out", "ln2"},
    {"self_attn.relative_k_proj", "attn_k_rel"},
    {"lconv1d.pre_layer_norm", "conv_norm"},
    {"lconv1d.conv_norm", "norm_conv"},
};

// What llama.cpp computes with whatever the config says.
struct Fixed {
  const char* key;
  double value;
};
constexpr Fixed kFixedVision[] = {{"pooling_kernel_size", 3}, {"rms_norm_eps", 1e-6}};
constexpr Fixed kFixedAudio[] = {
    {"attention_chunk_size", 12}, {"attention_context_left", 13}, {"attention_context_right", 0},
    {"attention_logit_cap", 50},  {"residual_weight", 0.5},       {"conv_kernel_size", 5},
    {"rms_norm_eps", 1e-6},
};
constexpr Fixed kFixedUnifiedAudio[] = {{"audio_embed_dim", 640}, {"rms_norm_eps", 1e-6}};

bool HasTower(const Config& config, const char* tower) {
  const auto found = config.json.find(tower);
  return found != config.json.end() && found->is_object();
}

Result<int> Int(const Config& config, const char* tower, const char* key) {
  const Json& json = config.json.at(tower);
  const auto found = json.find(key);
  constexpr int kMax = 1 << 24;
  if (found == json.end() || !found->is_number_integer() || *found < 0 || *found > kMax) {
    return Fail("config.json: {}.{}: expected an integer, found {}", tower, key,
                found == json.end() ? "nothing" : QuoteForMessage(found->dump()));
  }
  return found->get<int>();
}

bool Flag(const Config& config, const char* tower, const char* key, bool absent) {
  const auto found = config.json.at(tower).find(key);
  return found != config.json.at(tower).end() && found->is_boolean() ? found->get<bool>() : absent;
}

Status CheckFixed(const Config& config, const char* tower, std::span<const Fixed> facts) {
  for (const Fixed& fact : facts) {
    const auto found = config.json.at(tower).find(fact.key);
    if (found == config.json.at(tower).end() || *found == fact.value) continue;
    return Fail("config.json: {}.{}: {} cannot be written for llama.cpp, which has {} there", tower,
                fact.key, QuoteForMessage(found->dump()), fact.value);
  }
  return {};
}

Status CheckTowersExpressible(const Config& config) {
  if (!HasTower(config, kVision)) {
    return Fail("config.json: no {}: llama.cpp's file of towers begins with one", kVision);
  }
  NIBBLE_RETURN_IF_ERROR(CheckFixed(config, kVision, kFixedVision));
  if (config.layout == Layout::kUnified) {
    if (!HasTower(config, kAudio)) {
      return Fail("config.json: no {}: llama.cpp expects one in this architecture", kAudio);
    }
    return CheckFixed(config, kAudio, kFixedUnifiedAudio);
  }
  NIBBLE_ASSIGN_OR_RETURN(const int n_heads, Int(config, kVision, "num_attention_heads"));
  NIBBLE_ASSIGN_OR_RETURN(const int n_kv_heads, Int(config, kVision, "num_key_value_heads"));
  NIBBLE_ASSIGN_OR_RETURN(const int head_dim, Int(config, kVision, "head_dim"));
  NIBBLE_ASSIGN_OR_RETURN(const int width, Int(config, kVision, "hidden_size"));
  if (n_heads != n_kv_heads || n_heads * head_dim != width) {
    return Fail(
        "config.json: {}: {} heads of {} and {} KV heads cannot be written for llama.cpp, which "
        "splits {} into as many of either",
        kVision, n_heads, head_dim, n_kv_heads, width);
  }
  return HasTower(config, kAudio) ? CheckFixed(config, kAudio, kFixedAudio) : Status();
}

// Collects specs below a module: "model.vision_tower.encoder.layers.3." and "v.blk.3.".
class TowerList {
 public:
  void Enter(std::string source, std::string gguf) {
    source_ = std::move(source);
    gguf_ = std::move(gguf);
  }
  void Add(std::string_view source, std::string_view gguf, TowerChange change = TowerChange::kNone,
           bool is_f32 = false) {
    specs_.push_back({.source = fmt::format("{}{}", source_, source),
                      .name = fmt::format("{}{}", gguf_, gguf),
                      .change = change,
                      .is_f32 = is_f32});
  }
  void AddF32(std::string_view source, std::string_view gguf,
              TowerChange change = TowerChange::kNone) {
    Add(source, gguf, change, true);
  }
  void AddWeights(std::span<const TowerName> names) {
    for (const auto& [source, gguf] : names) {
      Add(fmt::format("{}.weight", source), fmt::format("{}.weight", gguf));
    }
  }
  void AddLinears(std::span<const TowerName> names, bool are_clipped) {
    for (const auto& [source, gguf] : names) {
      Add(fmt::format("{}.linear.weight", source), fmt::format("{}.weight", gguf));
      if (!are_clipped) continue;
      for (const char* bound : {"input_min", "input_max", "output_min", "output_max"}) {
        Add(fmt::format("{}.{}", source, bound), fmt::format("{}.{}", gguf, bound));
      }
    }
  }
  std::vector<TowerSpec> Take() { return std::move(specs_); }

 private:
  std::string source_;
  std::string gguf_;
  std::vector<TowerSpec> specs_;
};

Status AddVision(const Config& config, TowerList& list) {
  NIBBLE_ASSIGN_OR_RETURN(const int n_layers, Int(config, kVision, "num_hidden_layers"));
  const bool are_clipped = Flag(config, kVision, "use_clipped_linears", false);
  list.Enter("model.vision_tower.", "v.");
  list.AddF32("patch_embedder.input_proj.weight", "patch_embd.weight", TowerChange::kPatchKernel);
  list.AddF32("patch_embedder.position_embedding_table", "position_embd.weight");
  for (int i = 0; i < n_layers; ++i) {
    list.Enter(fmt::format("model.vision_tower.encoder.layers.{}.", i),
               fmt::format("v.blk.{}.", i));
    list.AddLinears(kVisionLinears, are_clipped);
    list.AddWeights(kVisionWeights);
  }
  if (Flag(config, kVision, "standardize", false)) {
    list.Enter("model.vision_tower.", "v.");
    list.Add("std_bias", "std_bias");
    list.Add("std_scale", "std_scale");
  }
  return {};
}

void AddUnifiedVision(TowerList& list) {
  list.Enter("model.vision_embedder.", "v.");
  list.AddF32("patch_dense.weight", "patch_embd.weight", TowerChange::kChannelsFirst);
  list.Add("patch_dense.bias", "patch_embd.bias");
  list.AddF32("pos_embedding", "position_embd.weight", TowerChange::kAxesFirst);
  for (const char* which : {"weight", "bias"}) {
    list.Add(fmt::format("patch_ln1.{}", which), fmt::format("patch_norm.1.{}", which),
             TowerChange::kChannelsFirst);
    list.Add(fmt::format("patch_ln2.{}", which), fmt::format("patch_norm.2.{}", which));
    list.Add(fmt::format("pos_norm.{}", which), fmt::format("patch_norm.3.{}", which));
  }
}

Status AddAudio(const Config& config, TowerList& list) {
  NIBBLE_ASSIGN_OR_RETURN(const int n_layers, Int(config, kAudio, "num_hidden_layers"));
  const bool are_clipped = Flag(config, kAudio, "use_clipped_linears", true);
  list.Enter("model.audio_tower.", "a.");
  for (int i = 0; i < 2; ++i) {
    const std::string layer = fmt::format("subsample_conv_projection.layer{}", i);
    list.AddF32(layer + ".conv.weight", fmt::format("conv1d.{}.weight", i));
    list.Add(layer + ".norm.weight", fmt::format("conv1d.{}.norm.weight", i));
  }
  list.AddF32("subsample_conv_projection.input_proj_linear.weight", "input_projection.weight");
  for (int i = 0; i < n_layers; ++i) {
    list.Enter(fmt::format("model.audio_tower.layers.{}.", i), fmt::format("a.blk.{}.", i));
    list.AddLinears(kAudioLinears, are_clipped);
    list.AddWeights(kAudioWeights);
    list.Add("self_attn.per_dim_scale", "per_dim_scale.weight", TowerChange::kSoftplus);
    list.AddF32("lconv1d.depthwise_conv1d.weight", "conv_dw.weight", TowerChange::kDropMiddle);
  }
  list.Enter("model.audio_tower.", "a.");
  list.Add("output_proj.weight", "pre_encode.out.weight");
  list.Add("output_proj.bias", "pre_encode.out.bias");
  return {};
}

Result<GgmlType> TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return GgmlType::kBF16;
    case DType::kF16:
      return GgmlType::kF16;
    case DType::kF32:
      return GgmlType::kF32;
    default:
      return Fail("expected BF16, F16 or F32, found {}", Name(dtype));
  }
}

// The shape after the change; nothing if it does not fit.
std::optional<std::vector<int64_t>> ChangedShape(TowerChange change, std::vector<int64_t> shape) {
  switch (change) {
    case TowerChange::kNone:
      if (shape.empty()) return std::vector<int64_t>{1};  // a bound
      return shape;
    case TowerChange::kSoftplus:
      return shape.size() == 1 ? std::optional(shape) : std::nullopt;
    case TowerChange::kDropMiddle:
      if (shape.size() != 3 || shape[1] != 1) return std::nullopt;
      return std::vector{shape[0], shape[2]};
    case TowerChange::kChannelsFirst:
      if (shape.empty() || shape.back() % 3 != 0) return std::nullopt;
      return shape;
    case TowerChange::kPatchKernel: {
      if (shape.size() != 2) return std::nullopt;
      const auto side = std::llround(std::sqrt(static_cast<double>(shape[1]) / 3));
      if (side * side * 3 != shape[1]) return std::nullopt;
      return std::vector<int64_t>{shape[0], 3, side, side};
    }
    case TowerChange::kAxesFirst:
      if (shape.size() != 3 || shape[1] != 2) return std::nullopt;
      return std::vector<int64_t>{2, shape[0], shape[2]};
  }
  return std::nullopt;
}

// Integers of a tower as "clip.vision.block_count" and so on.
struct Key {
  const char* gguf;
  const char* source;  // null: 0, which llama.cpp wants to be there
};

Status AddInts(const Config& config, const char* tower, std::string_view prefix,
               std::span<const Key> keys, std::vector<GgufEntry>* entries) {
  for (const Key& key : keys) {
    int value = 0;
    if (key.source != nullptr) {
      NIBBLE_ASSIGN_OR_RETURN(value, Int(config, tower, key.source));
    }
    entries->push_back({fmt::format("{}{}", prefix, key.gguf), static_cast<uint32_t>(value)});
  }
  return {};
}

constexpr uint32_t kUnusedImageSize = 224;
constexpr uint32_t kMelBins = 128;  // of Gemma's feature extractor
constexpr float kNormEpsilon = 1e-6F;

Status AddVisionKeys(const Config& config, bool is_unified, std::vector<GgufEntry>* entries) {
  constexpr Key kKeys[] = {{"patch_size", "patch_size"},
                           {"embedding_length", "hidden_size"},
                           {"feed_forward_length", "intermediate_size"},
                           {"block_count", "num_hidden_layers"},
                           {"attention.head_count", "num_attention_heads"}};
  constexpr Key kUnifiedKeys[] = {{"patch_size", "patch_size"},
                                  {"embedding_length", "mm_embed_dim"},
                                  {"feed_forward_length", nullptr},
                                  {"block_count", nullptr},
                                  {"attention.head_count", nullptr}};
  entries->push_back({"clip.has_vision_encoder", true});
  entries->push_back(
      {"clip.vision.projector_type", std::string(is_unified ? "gemma4uv" : "gemma4v")});
  entries->push_back({"clip.vision.projection_dim", static_cast<uint32_t>(config.hidden_size)});
  entries->push_back({"clip.vision.image_size", kUnusedImageSize});
  entries->push_back({"clip.vision.attention.layer_norm_epsilon", kNormEpsilon});
  return AddInts(config, kVision, "clip.vision.", is_unified ? kUnifiedKeys : kKeys, entries);
}

Status AddAudioKeys(const Config& config, bool is_unified, std::vector<GgufEntry>* entries) {
  constexpr Key kKeys[] = {{"embedding_length", "hidden_size"},
                           {"block_count", "num_hidden_layers"},
                           {"attention.head_count", "num_attention_heads"}};
  constexpr Key kUnifiedKeys[] = {{"embedding_length", "audio_embed_dim"},
                                  {"block_count", nullptr},
                                  {"attention.head_count", nullptr}};
  uint32_t mlp_width = 0;
  if (!is_unified) {
    NIBBLE_ASSIGN_OR_RETURN(const int width, Int(config, kAudio, "hidden_size"));
    mlp_width = 4 * static_cast<uint32_t>(width);
  }
  entries->push_back({"clip.has_audio_encoder", true});
  entries->push_back(
      {"clip.audio.projector_type", std::string(is_unified ? "gemma4ua" : "gemma4a")});
  entries->push_back({"clip.audio.projection_dim", static_cast<uint32_t>(config.hidden_size)});
  entries->push_back({"clip.audio.feed_forward_length", mlp_width});
  entries->push_back({"clip.audio.num_mel_bins", kMelBins});
  entries->push_back({"clip.audio.attention.layer_norm_epsilon", kNormEpsilon});
  return AddInts(config, kAudio, "clip.audio.", is_unified ? kUnifiedKeys : kKeys, entries);
}

}  // namespace

Result<std::vector<TowerSpec>> ExpectedTowers(const Config& config) {
  NIBBLE_RETURN_IF_ERROR(CheckTowersExpressible(config));
  const bool is_unified = config.layout == Layout::kUnified;
  TowerList list;
  if (is_unified) {
    AddUnifiedVision(list);
  } else {
    NIBBLE_RETURN_IF_ERROR(AddVision(config, list));
  }
  if (HasTower(config, kAudio) && !is_unified) NIBBLE_RETURN_IF_ERROR(AddAudio(config, list));
  list.Enter("model.", "mm.");
  list.Add("embed_vision.embedding_projection.weight", "input_projection.weight");
  if (HasTower(config, kAudio)) {
    list.Add("embed_audio.embedding_projection.weight", "a.input_projection.weight");
  }
  return list.Take();
}

Result<GgufTensor> GgufTowerTensor(const TowerSpec& spec, const checkpoint::TensorInfo& source) {
  const auto shape = ChangedShape(spec.change, source.shape);
  if (!shape.has_value()) {
    return Fail("tensor {}: its shape [{}] has no place in llama.cpp's {}", source.name,
                fmt::join(source.shape, ", "), spec.name);
  }
  Result<GgmlType> type = TypeOf(source.dtype);
  if (!type.has_value()) return Fail("tensor {}: {}", source.name, type.error().message);
  if (spec.is_f32 || shape->size() == 1) type = GgmlType::kF32;
  GgufTensor tensor{.name = spec.name, .type = *type, .dims = {shape->rbegin(), shape->rend()}};
  const auto size_bytes = checkpoint::GgmlSizeBytes(checkpoint::InfoOf(*type), tensor.dims);
  if (!size_bytes.has_value()) return Fail("tensor {}: too large", source.name);
  tensor.size_bytes = *size_bytes;
  return tensor;
}

Result<std::vector<GgufEntry>> GgufTowerConfig(const Config& config) {
  NIBBLE_RETURN_IF_ERROR(CheckTowersExpressible(config));
  const bool is_unified = config.layout == Layout::kUnified;
  std::vector<GgufEntry> entries = {{"general.architecture", std::string("clip")}};
  NIBBLE_RETURN_IF_ERROR(AddVisionKeys(config, is_unified, &entries));
  if (HasTower(config, kAudio)) NIBBLE_RETURN_IF_ERROR(AddAudioKeys(config, is_unified, &entries));
  return entries;
}

uint64_t GgufTowerBytes(const Config& config, const checkpoint::Checkpoint& checkpoint) {
  const auto specs = ExpectedTowers(config);
  if (!specs.has_value()) return 0;
  uint64_t n_bytes = 0;
  for (const TowerSpec& spec : *specs) {
    const checkpoint::Tensor* const source = checkpoint.Find(spec.source);
    if (source == nullptr) return 0;
    const auto tensor = GgufTowerTensor(spec, source->info);
    if (!tensor.has_value()) return 0;
    n_bytes += tensor->size_bytes;
  }
  return n_bytes;
}

std::filesystem::path GgufTowersPath(const std::filesystem::path& text_file) {
  std::string model = text_file.stem().string();
  for (const std::string_view type : {"-Q4_0", "-q4_0", ".Q4_0", ".q4_0"}) {
    if (model.ends_with(type)) model.resize(model.size() - type.size());
  }
  return text_file.parent_path() / fmt::format("mmproj-{}-BF16.gguf", model);
}

std::optional<Part> GgufTowerPart(std::string_view gguf_name) {
  if (gguf_name.starts_with("a.") || gguf_name.starts_with("mm.a.")) return Part::kAudio;
  if (gguf_name.starts_with("v.") || gguf_name.starts_with("mm.")) return Part::kVision;
  return std::nullopt;
}

}  // namespace nibble::gemma
