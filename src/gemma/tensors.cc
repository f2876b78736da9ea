#include "gemma/tensors.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/check.h"

namespace nibble::gemma {
namespace {

// Collects specs: a name is a prefix ("model.layers.3.") and the part that the callers below spell.
class SpecList {
 public:
  void Enter(std::string prefix, int layer_idx) {
    prefix_ = std::move(prefix);
    layer_idx_ = layer_idx;
  }

  void Add(Role role, std::string_view name, std::vector<int64_t> shape) {
    specs_.push_back({.name = fmt::format("{}{}", prefix_, name),
                      .role = role,
                      .layer_idx = layer_idx_,
                      .shape = std::move(shape)});
  }
  void AddLinear(std::string_view module, int64_t n, int64_t k) {
    Add(Role::kLinear, fmt::format("{}.weight", module), {n, k});
  }
  void AddNorm(std::string_view module, int64_t width) {
    Add(Role::kPlain, fmt::format("{}.weight", module), {width});
  }

  std::vector<TensorSpec> Take() { return std::move(specs_); }

 private:
  std::string prefix_;
  int layer_idx_ = -1;
  std::vector<TensorSpec> specs_;
};

void AddAttention(const Config& config, int layer_idx, SpecList& specs) {
  const LayerConfig& layer = config.layers[layer_idx];
  const int64_t d = config.hidden_size;
  const int64_t q_width = int64_t{config.n_heads} * layer.head_dim;
  const int64_t kv_width = int64_t{layer.n_kv_heads} * layer.head_dim;
  specs.AddNorm("input_layernorm", d);
  specs.AddLinear("self_attn.q_proj", q_width, d);
  specs.AddNorm("self_attn.q_norm", layer.head_dim);
  if (config.OwnsKv(layer_idx)) {
    specs.AddLinear("self_attn.k_proj", kv_width, d);
    specs.AddNorm("self_attn.k_norm", layer.head_dim);
    if (!layer.k_eq_v) specs.AddLinear("self_attn.v_proj", kv_width, d);
  }
  specs.AddLinear("self_attn.o_proj", d, q_width);
  specs.AddNorm("post_attention_layernorm", d);
}

void AddExperts(const Config& config, SpecList& specs) {
  const int64_t d = config.hidden_size;
  const int64_t e = config.n_experts;
  const int64_t f = config.moe_width;
  specs.AddNorm("post_feedforward_layernorm_1", d);
  specs.Add(Role::kPlain, "router.scale", {d});
  specs.Add(Role::kPlain, "router.proj.weight", {e, d});
  specs.Add(Role::kPlain, "router.per_expert_scale", {e});
  specs.AddNorm("pre_feedforward_layernorm_2", d);
  specs.Add(Role::kExpertBank, "experts.gate_up_proj", {e, 2 * f, d});
  specs.Add(Role::kExpertBank, "experts.down_proj", {e, d, f});
  specs.AddNorm("post_feedforward_layernorm_2", d);
}

void AddLayer(const Config& config, int layer_idx, SpecList& specs) {
  const int64_t d = config.hidden_size;
  const int64_t f = config.layers[layer_idx].mlp_width;
  const int64_t p = config.ple_width;
  specs.Enter(fmt::format("model.layers.{}.", layer_idx), layer_idx);
  AddAttention(config, layer_idx, specs);
  specs.AddNorm("pre_feedforward_layernorm", d);
  specs.AddLinear("mlp.gate_proj", f, d);
  specs.AddLinear("mlp.up_proj", f, d);
  specs.AddLinear("mlp.down_proj", d, f);
  if (config.n_experts > 0) AddExperts(config, specs);
  specs.AddNorm("post_feedforward_layernorm", d);
  if (p > 0) {
    specs.AddLinear("per_layer_input_gate", p, d);
    specs.AddLinear("per_layer_projection", d, p);
    specs.AddNorm("post_per_layer_input_norm", d);
  }
  specs.Add(Role::kPlain, "layer_scalar", {1});
}

// Cuts `text` at its first dot: returns the part before, leaves the part after.
std::string_view TakeComponent(std::string_view& text) {
  const size_t dot = std::min(text.find('.'), text.size());
  const std::string_view component = text.substr(0, dot);
  text.remove_prefix(std::min(dot + 1, text.size()));
  return component;
}

std::optional<int> ParseIndex(std::string_view text) {
  int index = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (fault != std::errc() || end != text.data() + text.size() || index < 0) return std::nullopt;
  return index;
}

struct ModulePart {
  std::string_view module;
  Part part;
};

template <size_t N>
std::optional<Part> FindPart(const std::array<ModulePart, N>& modules, std::string_view module) {
  const auto* found = std::ranges::find(modules, module, &ModulePart::module);
  return found == modules.end() ? std::nullopt : std::optional(found->part);
}

// Modules directly under "model.", towers included.
constexpr std::array kModelModules = {
    ModulePart{"embed_tokens", Part::kVocabulary},
    ModulePart{"norm", Part::kBody},
    ModulePart{"embed_tokens_per_layer", Part::kPle},
    ModulePart{"per_layer_model_projection", Part::kPle},
    ModulePart{"per_layer_projection_norm", Part::kPle},
    ModulePart{"audio_tower", Part::kAudio},
    ModulePart{"embed_audio", Part::kAudio},
    ModulePart{"vision_tower", Part::kVision},
    ModulePart{"embed_vision", Part::kVision},
    ModulePart{"vision_embedder", Part::kVision},
};

constexpr std::array kLayerModules = {
    ModulePart{"self_attn", Part::kBody},
    ModulePart{"mlp", Part::kBody},
    ModulePart{"router", Part::kBody},
    ModulePart{"experts", Part::kBody},
    ModulePart{"input_layernorm", Part::kBody},
    ModulePart{"post_attention_layernorm", Part::kBody},
    ModulePart{"pre_feedforward_layernorm", Part::kBody},
    ModulePart{"pre_feedforward_layernorm_2", Part::kBody},
    ModulePart{"post_feedforward_layernorm", Part::kBody},
    ModulePart{"post_feedforward_layernorm_1", Part::kBody},
    ModulePart{"post_feedforward_layernorm_2", Part::kBody},
    ModulePart{"layer_scalar", Part::kBody},
    ModulePart{"per_layer_input_gate", Part::kPle},
    ModulePart{"per_layer_projection", Part::kPle},
    ModulePart{"post_per_layer_input_norm", Part::kPle},
};

constexpr std::string_view kNestedPrefix = "model.language_model.";

bool IsTower(Part part) { return part == Part::kAudio || part == Part::kVision; }

}  // namespace

std::string_view Name(Part part) {
  switch (part) {
    case Part::kBody:
      return "body";
    case Part::kPle:
      return "ple";
    case Part::kVocabulary:
      return "vocabulary";
    case Part::kAudio:
      return "audio";
    case Part::kVision:
      return "vision";
  }
  CHECK(false);
}

std::vector<TensorSpec> ExpectedTensors(const Config& config) {
  const int64_t d = config.hidden_size;
  const int64_t ple_row = int64_t{config.n_layers()} * config.ple_width;
  SpecList specs;
  specs.Enter("model.", -1);
  specs.Add(Role::kTokenEmbedding, "embed_tokens.weight", {config.vocab_size, d});
  if (config.ple_width > 0) {
    specs.Add(Role::kPleEmbedding, "embed_tokens_per_layer.weight",
              {config.ple_vocab_size, ple_row});
    specs.AddLinear("per_layer_model_projection", ple_row, d);
    specs.AddNorm("per_layer_projection_norm", config.ple_width);
  }
  for (int i = 0; i < config.n_layers(); ++i) AddLayer(config, i, specs);
  specs.Enter("model.", -1);
  specs.AddNorm("norm", d);
  specs.Enter("", -1);
  if (!config.tie_word_embeddings) {
    specs.Add(Role::kLmHead, "lm_head.weight", {config.vocab_size, d});
  }
  return specs.Take();
}

std::optional<Part> PartOf(std::string_view source_name) {
  std::string_view rest = source_name;
  const bool is_nested = rest.starts_with(kNestedPrefix);
  const std::string_view root = TakeComponent(rest);
  if (root == "lm_head") return Part::kVocabulary;
  if (root != "model") return std::nullopt;
  if (is_nested) TakeComponent(rest);
  const std::string_view module = TakeComponent(rest);
  if (module == "layers") {
    if (!ParseIndex(TakeComponent(rest))) return std::nullopt;
    return FindPart(kLayerModules, TakeComponent(rest));
  }
  const std::optional<Part> part = FindPart(kModelModules, module);
  if (part && IsTower(*part) && is_nested) return std::nullopt;
  return part;
}

std::optional<std::string> TextName(std::string_view source_name) {
  const std::optional<Part> part = PartOf(source_name);
  if (!part || IsTower(*part)) return std::nullopt;
  if (!source_name.starts_with(kNestedPrefix)) return std::string(source_name);
  return fmt::format("model.{}", source_name.substr(kNestedPrefix.size()));
}

bool IsIgnoredLeftover(const Config& config, std::string_view canonical_name) {
  constexpr std::array<std::string_view, 4> kModules = {"k_proj", "v_proj", "k_norm", "v_norm"};
  std::string_view rest = canonical_name;
  if (TakeComponent(rest) != "model" || TakeComponent(rest) != "layers") return false;
  const std::optional<int> layer_idx = ParseIndex(TakeComponent(rest));
  if (!layer_idx || *layer_idx >= config.n_layers() || config.OwnsKv(*layer_idx)) return false;
  return TakeComponent(rest) == "self_attn" &&
         std::ranges::find(kModules, TakeComponent(rest)) != kModules.end();
}

}  // namespace nibble::gemma
