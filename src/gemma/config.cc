#include "gemma/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace nibble::gemma {
namespace {

// Far above every Gemma 4, and low enough that the products the other rooms form (rows times
// columns, experts times both) stay far below 2^63.
constexpr int kMaxLayers = 1024;
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxHeads = 1 << 12;
constexpr int kMaxHeadDim = 1 << 12;
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxExperts = 1 << 12;
constexpr int kMaxPositions = 1 << 30;

constexpr std::string_view kSliding = "sliding_attention";
constexpr std::string_view kFull = "full_attention";

struct Architecture {
  std::string_view class_name;
  std::string_view model_type;
  Layout layout;
};

constexpr std::array kArchitectures = {
    Architecture{"Gemma4ForConditionalGeneration", "gemma4", Layout::kMultimodal},
    Architecture{"Gemma4UnifiedForConditionalGeneration", "gemma4_unified", Layout::kUnified},
    Architecture{"Gemma4ForCausalLM", "gemma4_text", Layout::kTextOnly},
    Architecture{"Gemma4UnifiedForCausalLM", "gemma4_unified_text", Layout::kTextOnly},
};

// An object of the config. Its getters take transformers' default for an absent key (no default:
// the key must be there) and name the key in every error.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }

  // nullptr if the key is absent or null.
  const Json* Find(std::string_view key) const {
    const auto field = object_.find(key);
    return field == object_.end() || field->is_null() ? nullptr : &*field;
  }

  Result<Fields> Object(std::string_view key) const {
    const Json* field = Find(key);
    if (field == nullptr || !field->is_object()) return Wrong(key, "an object", field);
    return Fields(*field, fmt::format("{} {}:", where_, key));
  }

  Result<int> Int(std::string_view key, int min, int max, std::optional<int> fallback = {}) const {
    const Json* field = Find(key);
    if (!object_.contains(key) && fallback) return *fallback;
    if (field != nullptr && field->is_number_integer()) {
      const auto value = field->get<int64_t>();
      const bool wraps = field->is_number_unsigned() && value < 0;
      if (!wraps && value >= min && value <= max) return static_cast<int>(value);
    }
    return Wrong(key, fmt::format("an integer from {} to {}", min, max), field);
  }

  Result<double> PositiveNumber(std::string_view key, std::optional<double> fallback = {}) const {
    const Json* field = Find(key);
    if (!object_.contains(key) && fallback) return *fallback;
    if (field != nullptr && field->is_number()) {
      const auto value = field->get<double>();
      const auto as_float = static_cast<float>(value);
      if (as_float > 0 && std::isfinite(as_float)) return value;
    }
    return Wrong(key, "a positive number", field);
  }

  Result<bool> Bool(std::string_view key, bool fallback) const {
    const Json* field = Find(key);
    if (!object_.contains(key)) return fallback;
    if (field == nullptr || !field->is_boolean()) return Wrong(key, "true or false", field);
    return field->get<bool>();
  }

  // Error unless the key is absent, null or `only`.
  Status Expect(std::string_view key, const Json& only) const {
    const Json* field = Find(key);
    if (field != nullptr && *field != only) return Wrong(key, only.dump(), field);
    return {};
  }

  std::unexpected<Error> Wrong(std::string_view key, std::string_view expected,
                               const Json* found) const {
    if (found == nullptr) return Fail("{} {} is missing: expected {}", where_, key, expected);
    return Fail("{} {}: expected {}, found {}", where_, key, expected,
                QuoteForMessage(found->dump()));
  }

 private:
  const Json& object_;
  std::string where_;
};

// The text part's sizes that every layer's facts are derived from.
struct LayerDefaults {
  int head_dim = 0;
  int n_kv_heads = 0;
  int global_head_dim = 0;
  int n_global_kv_heads = 0;
  int mlp_width = 0;
  bool double_wide_when_shared = false;
  bool k_eq_v = false;
  int n_shared_layers = 0;
};

struct Rope {
  double theta = 0;
  double rotating_share = 0;  // of the pairs
};

Result<const Architecture*> FindArchitecture(const Fields& top) {
  std::string class_name;
  if (const Json* names = top.Find("architectures"); names != nullptr) {
    if (!names->is_array() || names->size() != 1 || !(*names)[0].is_string()) {
      return top.Wrong("architectures", "a list of one name", names);
    }
    class_name = (*names)[0].get<std::string>();
  }
  std::string model_type;
  if (const Json* type = top.Find("model_type"); type != nullptr) {
    if (!type->is_string()) return top.Wrong("model_type", "a string", type);
    model_type = type->get<std::string>();
  }
  for (const Architecture& known : kArchitectures) {
    const bool named = class_name == known.class_name;
    const bool typed = model_type == known.model_type;
    if ((named && typed) || (named && model_type.empty()) || (typed && class_name.empty())) {
      return &known;
    }
  }
  return Fail("{} architectures {} with model_type {} is not a Gemma 4 that nibble knows",
              top.where(), QuoteForMessage(class_name), QuoteForMessage(model_type));
}

// layer_types as "is it sliding". By default every sixth layer is full, and the last.
Result<std::vector<bool>> ParseLayerTypes(const Fields& text, int n_layers) {
  std::vector<bool> is_sliding;
  const Json* types = text.Find("layer_types");
  if (types == nullptr) {
    for (int i = 1; i <= n_layers; ++i) is_sliding.push_back(i % 6 != 0 && i != n_layers);
    return is_sliding;
  }
  if (!types->is_array() || std::cmp_not_equal(types->size(), n_layers)) {
    return text.Wrong("layer_types", fmt::format("a list of {} names", n_layers), types);
  }
  for (const Json& type : *types) {
    if (type != kSliding && type != kFull) {
      return text.Wrong("layer_types", fmt::format("{} or {}", kSliding, kFull), &type);
    }
    is_sliding.push_back(type == kSliding);
  }
  if (is_sliding.back()) {
    return text.Wrong("layer_types", fmt::format("{} in the last place", kFull), &types->back());
  }
  return is_sliding;
}

Result<Rope> ParseRope(const Fields& text, std::string_view layer_type) {
  if (text.Find("rope_parameters") == nullptr) {
    return layer_type == kSliding ? Rope{10'000, 1} : Rope{1'000'000, 0.25};
  }
  NIBBLE_ASSIGN_OR_RETURN(const Fields all, text.Object("rope_parameters"));
  NIBBLE_ASSIGN_OR_RETURN(const Fields rope, all.Object(layer_type));
  Rope result;
  NIBBLE_ASSIGN_OR_RETURN(result.theta, rope.PositiveNumber("rope_theta"));
  NIBBLE_RETURN_IF_ERROR(rope.Expect("factor", 1.0));
  const Json* type = rope.Find(rope.Find("rope_type") != nullptr ? "rope_type" : "type");
  if (type == nullptr || *type == "default") {
    result.rotating_share = 1;  // "default" rotates all pairs, whatever partial_rotary_factor says
    return result;
  }
  if (*type != "proportional") return rope.Wrong("rope_type", "default or proportional", type);
  NIBBLE_ASSIGN_OR_RETURN(result.rotating_share, rope.PositiveNumber("partial_rotary_factor", 1.0));
  if (result.rotating_share > 1) {
    return rope.Wrong("partial_rotary_factor", "at most 1", rope.Find("partial_rotary_factor"));
  }
  return result;
}

Result<LayerDefaults> ParseLayerDefaults(const Fields& text, int n_layers) {
  LayerDefaults d;
  NIBBLE_ASSIGN_OR_RETURN(d.head_dim, text.Int("head_dim", 2, kMaxHeadDim, 256));
  NIBBLE_ASSIGN_OR_RETURN(d.n_kv_heads, text.Int("num_key_value_heads", 1, kMaxHeads, 4));
  NIBBLE_ASSIGN_OR_RETURN(d.global_head_dim, text.Int("global_head_dim", 2, kMaxHeadDim, 512));
  NIBBLE_ASSIGN_OR_RETURN(d.mlp_width, text.Int("intermediate_size", 1, kMaxWidth, 9216));
  NIBBLE_ASSIGN_OR_RETURN(d.double_wide_when_shared, text.Bool("use_double_wide_mlp", false));
  NIBBLE_ASSIGN_OR_RETURN(d.k_eq_v, text.Bool("attention_k_eq_v", false));
  NIBBLE_ASSIGN_OR_RETURN(d.n_shared_layers, text.Int("num_kv_shared_layers", 0, n_layers - 1, 0));
  d.n_global_kv_heads = d.n_kv_heads;
  if (d.k_eq_v && text.Find("num_global_key_value_heads") != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(d.n_global_kv_heads,
                            text.Int("num_global_key_value_heads", 1, kMaxHeads));
  }
  return d;
}

// per_layer_config: {"4": {"head_dim": 512, "num_key_value_heads": 1}, ...}. Where it stands, the
// global_ keys count for nothing.
Status ApplyPerLayerConfig(const Fields& text, const LayerDefaults& defaults,
                           std::vector<LayerConfig>& layers) {
  if (text.Find("per_layer_config") == nullptr) return {};
  NIBBLE_ASSIGN_OR_RETURN(const Fields all, text.Object("per_layer_config"));
  for (LayerConfig& layer : layers) {
    layer.head_dim = defaults.head_dim;
    layer.n_kv_heads = defaults.n_kv_heads;
  }
  for (const auto& [key, overrides] : text.Find("per_layer_config")->items()) {
    size_t layer_idx = 0;
    const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), layer_idx);
    if (fault != std::errc() || end != key.data() + key.size() || layer_idx >= layers.size()) {
      return Fail("{} {} is not the index of a layer", all.where(), QuoteForMessage(key));
    }
    NIBBLE_ASSIGN_OR_RETURN(const Fields layer, all.Object(key));
    for (const auto& [name, value] : overrides.items()) {
      if (name != "head_dim" && name != "num_key_value_heads") {
        return layer.Wrong(QuoteForMessage(name), "only head_dim and num_key_value_heads here",
                           &value);
      }
    }
    LayerConfig& out = layers[layer_idx];
    NIBBLE_ASSIGN_OR_RETURN(out.head_dim, layer.Int("head_dim", 2, kMaxHeadDim, out.head_dim));
    NIBBLE_ASSIGN_OR_RETURN(out.n_kv_heads,
                            layer.Int("num_key_value_heads", 1, kMaxHeads, out.n_kv_heads));
  }
  return {};
}

// The last `n_shared_layers` read the KV of the last earlier layer of their type.
Status AssignKvOwners(int n_shared_layers, std::string_view where,
                      std::vector<LayerConfig>& layers) {
  const int first_shared = static_cast<int>(layers.size()) - n_shared_layers;
  std::array<int, 2> last_owner = {-1, -1};  // by is_sliding
  for (int i = 0; std::cmp_less(i, layers.size()); ++i) {
    LayerConfig& layer = layers[i];
    int& owner = last_owner[layer.is_sliding];
    if (i < first_shared) owner = i;
    if (owner < 0) {
      return Fail(
          "{} num_kv_shared_layers: layer {} shares the KV of a {} layer, but none is before "
          "layer {}",
          where, i, layer.is_sliding ? kSliding : kFull, first_shared);
    }
    if (layer.head_dim != layers[owner].head_dim || layer.n_kv_heads != layers[owner].n_kv_heads) {
      return Fail(
          "{} num_kv_shared_layers: layer {} has other KV heads than layer {}, whose KV it "
          "shares",
          where, i, owner);
    }
    layer.kv_owner_layer = owner;
  }
  return {};
}

Status CheckHeads(const Config& config, std::string_view where) {
  for (int i = 0; i < config.n_layers(); ++i) {
    const LayerConfig& layer = config.layers[i];
    if (layer.head_dim % 2 != 0) {
      return Fail("{} head dim of layer {}: expected an even number, found {}", where, i,
                  layer.head_dim);
    }
    if (config.n_heads % layer.n_kv_heads != 0) {
      return Fail("{} num_attention_heads: {} is not a multiple of layer {}'s {} KV heads", where,
                  config.n_heads, i, layer.n_kv_heads);
    }
  }
  return {};
}

Status ParseLayers(const Fields& text, Config& config) {
  NIBBLE_ASSIGN_OR_RETURN(const int n_layers, text.Int("num_hidden_layers", 1, kMaxLayers, 30));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<bool> is_sliding, ParseLayerTypes(text, n_layers));
  NIBBLE_ASSIGN_OR_RETURN(const LayerDefaults defaults, ParseLayerDefaults(text, n_layers));
  NIBBLE_ASSIGN_OR_RETURN(const Rope full_rope, ParseRope(text, kFull));
  Rope sliding_rope;  // its key may be absent where no layer slides
  if (std::ranges::find(is_sliding, true) != is_sliding.end()) {
    NIBBLE_ASSIGN_OR_RETURN(sliding_rope, ParseRope(text, kSliding));
  }
  config.layers.resize(n_layers);
  for (int i = 0; i < n_layers; ++i) {
    LayerConfig& layer = config.layers[i];
    layer.is_sliding = is_sliding[i];
    layer.head_dim = layer.is_sliding ? defaults.head_dim : defaults.global_head_dim;
    layer.n_kv_heads = layer.is_sliding ? defaults.n_kv_heads : defaults.n_global_kv_heads;
    layer.k_eq_v = defaults.k_eq_v && !layer.is_sliding;
    const bool is_shared = i >= n_layers - defaults.n_shared_layers;
    layer.mlp_width = defaults.mlp_width * (is_shared && defaults.double_wide_when_shared ? 2 : 1);
  }
  NIBBLE_RETURN_IF_ERROR(ApplyPerLayerConfig(text, defaults, config.layers));
  NIBBLE_RETURN_IF_ERROR(AssignKvOwners(defaults.n_shared_layers, text.where(), config.layers));
  NIBBLE_RETURN_IF_ERROR(CheckHeads(config, text.where()));
  for (LayerConfig& layer : config.layers) {
    const Rope& rope = layer.is_sliding ? sliding_rope : full_rope;
    layer.rope_theta = rope.theta;
    // int(share * head_dim // 2), in this order, as transformers rounds it.
    layer.n_rotating_pairs = static_cast<int>(std::floor(rope.rotating_share * layer.head_dim / 2));
  }
  return {};
}

Status ParseExperts(const Fields& text, Config& config) {
  NIBBLE_ASSIGN_OR_RETURN(const bool is_moe, text.Bool("enable_moe_block", false));
  if (!is_moe) return {};
  NIBBLE_ASSIGN_OR_RETURN(config.n_experts, text.Int("num_experts", 1, kMaxExperts));
  NIBBLE_ASSIGN_OR_RETURN(config.top_k_experts, text.Int("top_k_experts", 1, config.n_experts));
  NIBBLE_ASSIGN_OR_RETURN(config.moe_width, text.Int("moe_intermediate_size", 1, kMaxWidth));
  return {};
}

// Facts that the forward pass is written for; a config that says otherwise is another model.
Status CheckFixedFacts(const Fields& text) {
  NIBBLE_RETURN_IF_ERROR(text.Expect("hidden_activation", "gelu_pytorch_tanh"));
  NIBBLE_RETURN_IF_ERROR(text.Expect("attention_bias", false));
  return text.Expect("use_bidirectional_attention", "vision");  // concerns image tokens only
}

Status ParseText(const Fields& text, bool is_unified, Config& config) {
  NIBBLE_RETURN_IF_ERROR(CheckFixedFacts(text));
  NIBBLE_ASSIGN_OR_RETURN(config.hidden_size, text.Int("hidden_size", 1, kMaxWidth, 2304));
  NIBBLE_ASSIGN_OR_RETURN(config.n_heads, text.Int("num_attention_heads", 1, kMaxHeads, 8));
  NIBBLE_ASSIGN_OR_RETURN(config.vocab_size, text.Int("vocab_size", 1, kMaxVocab, 262'144));
  NIBBLE_ASSIGN_OR_RETURN(config.sliding_window,
                          text.Int("sliding_window", 1, kMaxPositions, is_unified ? 1024 : 512));
  NIBBLE_ASSIGN_OR_RETURN(
      config.max_position_embeddings,
      text.Int("max_position_embeddings", 1, kMaxPositions, is_unified ? 262'144 : 131'072));
  // The unified model has no per-layer embeddings, and no keys for them.
  if (!is_unified) {
    NIBBLE_ASSIGN_OR_RETURN(config.ple_width,
                            text.Int("hidden_size_per_layer_input", 0, kMaxWidth, 256));
  }
  if (config.ple_width > 0) {
    NIBBLE_ASSIGN_OR_RETURN(config.ple_vocab_size,
                            text.Int("vocab_size_per_layer_input", 1, kMaxVocab, 262'144));
  }
  NIBBLE_ASSIGN_OR_RETURN(const double eps, text.PositiveNumber("rms_norm_eps", 1e-6));
  config.rms_norm_eps = static_cast<float>(eps);
  if (text.Find("final_logit_softcapping") != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(const double cap, text.PositiveNumber("final_logit_softcapping"));
    config.final_logit_softcapping = static_cast<float>(cap);
  }
  NIBBLE_RETURN_IF_ERROR(ParseExperts(text, config));
  return ParseLayers(text, config);
}

}  // namespace

int Config::first_shared_layer() const {
  int layer_idx = n_layers();
  while (layer_idx > 0 && !OwnsKv(layer_idx - 1)) --layer_idx;
  return layer_idx;
}

Result<Config> ParseConfig(Json json, std::string_view where) {
  if (!json.is_object()) return Fail("{}: not a JSON object", where);
  Config config;
  config.json = std::move(json);
  const Fields top(config.json, fmt::format("{}:", where));
  NIBBLE_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(top));
  config.layout = architecture->layout;
  NIBBLE_ASSIGN_OR_RETURN(config.tie_word_embeddings, top.Bool("tie_word_embeddings", true));
  const bool is_unified = architecture->model_type.starts_with("gemma4_unified");
  if (config.layout == Layout::kTextOnly) {
    NIBBLE_RETURN_IF_ERROR(ParseText(top, is_unified, config));
    return config;
  }
  NIBBLE_ASSIGN_OR_RETURN(const Fields text, top.Object("text_config"));
  NIBBLE_RETURN_IF_ERROR(
      text.Expect("model_type", fmt::format("{}_text", architecture->model_type)));
  NIBBLE_RETURN_IF_ERROR(text.Expect("tie_word_embeddings", config.tie_word_embeddings));
  NIBBLE_RETURN_IF_ERROR(ParseText(text, is_unified, config));
  return config;
}

Result<Config> ReadConfig(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "config.json";
  NIBBLE_ASSIGN_OR_RETURN(Json json, ReadJsonFile(path));
  return ParseConfig(std::move(json), path.string());
}

}  // namespace nibble::gemma
