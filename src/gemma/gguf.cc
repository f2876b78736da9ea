// The config as GGUF metadata, and back.
#include "gemma/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>

namespace nibble::gemma {
namespace {

using checkpoint::GgmlType;
using checkpoint::GgufArray;
using checkpoint::GgufEntry;
using checkpoint::GgufFile;
using checkpoint::GgufTensor;
using checkpoint::GgufValue;

constexpr std::string_view kGgufArchitecture = "gemma4";
constexpr float kDefaultSoftcap = 30;  // of llama.cpp for a file that says nothing

std::string GgufKey(std::string_view name) { return fmt::format("{}.{}", kGgufArchitecture, name); }

// A fact of the layers, as one number where all agree.
template <typename Fact>
GgufValue PerLayer(const Config& config, Fact fact) {
  std::vector<int32_t> values;
  values.reserve(config.layers.size());
  for (const LayerConfig& layer : config.layers) values.push_back(fact(layer));
  const bool agree = std::ranges::all_of(values, [&](int32_t v) { return v == values[0]; });
  if (agree) return static_cast<uint32_t>(values[0]);
  return GgufArray{std::move(values)};
}

// The last layer of a kind; of the other kind if this one does not occur, as readers want numbers
// for both.
const LayerConfig& LastOfKind(const Config& config, bool is_sliding) {
  const auto last = std::find_if(config.layers.rbegin(), config.layers.rend(),
                                 [&](const LayerConfig& l) { return l.is_sliding == is_sliding; });
  return last == config.layers.rend() ? config.layers.back() : *last;
}

Status CheckExpressible(const Config& config) {
  const int n_own = config.first_shared_layer();
  for (int i = 0; i < config.n_layers(); ++i) {
    const LayerConfig& layer = config.layers[i];
    const LayerConfig& example = LastOfKind(config, layer.is_sliding);
    const std::string where = fmt::format("layer {} cannot be written for llama.cpp:", i);
    if (layer.head_dim != example.head_dim) {
      return Fail("{} head_dim {}, where another layer of its kind has {}", where, layer.head_dim,
                  example.head_dim);
    }
    if (layer.is_sliding && layer.n_rotating_pairs != layer.head_dim / 2) {
      return Fail("{} a sliding layer of which only {} of {} pairs turn", where,
                  layer.n_rotating_pairs, layer.head_dim / 2);
    }
    const int expected_owner = n_own - (layer.is_sliding ? 2 : 1);
    if (!config.OwnsKv(i) && layer.kv_owner_layer != expected_owner) {
      return Fail("{} it shares the KV of layer {}, expected {}", where, layer.kv_owner_layer,
                  expected_owner);
    }
  }
  if (config.ple_width > 0 && config.ple_vocab_size != config.vocab_size) {
    return Fail(
        "embed_tokens_per_layer cannot be written for llama.cpp: it has {} rows, embed_tokens {}",
        config.ple_vocab_size, config.vocab_size);
  }
  return {};
}

// The metadata of one file, read with the file's name in every error.
class GgufFields {
 public:
  explicit GgufFields(const GgufFile& file) : file_(file) {}

  Result<int> Int(std::string_view name) const {
    NIBBLE_ASSIGN_OR_RETURN(const uint64_t value,
                            GetGgufUnsigned(file_.header(), GgufKey(name), file_.where()));
    if (std::cmp_less_equal(value, std::numeric_limits<int>::max())) return static_cast<int>(value);
    return Fail("{}: key {}: {} is out of range", file_.where(), GgufKey(name), value);
  }
  Result<int> Int(std::string_view name, int fallback) const {
    return Has(name) ? Int(name) : fallback;
  }

  Result<float> Float(std::string_view name) const {
    return checkpoint::GetGguf<float>(file_.header(), GgufKey(name), file_.where());
  }
  Result<float> Float(std::string_view name, float fallback) const {
    return Has(name) ? Float(name) : fallback;
  }

  bool Has(std::string_view name) const {
    return file_.header().FindValue(GgufKey(name)) != nullptr;
  }

  // A number for all layers, or a list with one for each.
  Result<std::vector<int>> PerLayerInts(std::string_view name, int n_layers) const {
    const GgufValue* const value = file_.header().FindValue(GgufKey(name));
    if (value == nullptr || !std::holds_alternative<GgufArray>(*value)) {
      NIBBLE_ASSIGN_OR_RETURN(const int all, Int(name));
      return std::vector<int>(static_cast<size_t>(n_layers), all);
    }
    std::vector<int> ints;
    const auto append = [&](const auto& elements) {
      for (const auto& element : elements) {
        using Element = std::decay_t<decltype(element)>;
        if constexpr (std::is_integral_v<Element> && sizeof(Element) >= sizeof(int)) {
          // One that does not fit becomes -1, which no fact of a layer may be.
          ints.push_back(std::in_range<int>(element) ? static_cast<int>(element) : -1);
        }
      }
    };
    std::visit(append, std::get<GgufArray>(*value).elements);
    if (std::ssize(ints) == n_layers) return ints;
    return Fail("{}: key {}: expected an integer or {} of them, found {}", file_.where(),
                GgufKey(name), n_layers, GgufTypeName(*value));
  }

  Result<std::vector<bool>> IsSliding(int n_layers) const {
    constexpr std::string_view kPattern = "attention.sliding_window_pattern";
    NIBBLE_ASSIGN_OR_RETURN(
        const std::vector<bool>* found,
        checkpoint::GetGgufArray<bool>(file_.header(), GgufKey(kPattern), file_.where()));
    if (std::ssize(*found) == n_layers) return *found;
    return Fail("{}: key {}: expected {} values, found {}", file_.where(), GgufKey(kPattern),
                n_layers, found->size());
  }

  // Rows of the table `name`.
  Result<int> TableRows(std::string_view name) const {
    const GgufTensor* const tensor = file_.header().FindTensor(name);
    if (tensor == nullptr) return Fail("{}: no tensor {}", file_.where(), name);
    if (tensor->dims.size() != 2 || !std::in_range<int>(tensor->dims[1])) {
      return Fail("{}: {}: expected a matrix, found {} dimensions", file_.where(), name,
                  tensor->dims.size());
    }
    return static_cast<int>(tensor->dims[1]);
  }

  // How many pairs of a full layer turn.
  Result<int> RotatingPairs(int head_dim) const {
    const GgufTensor* const tensor = file_.header().FindTensor(kGgufRopeFactors);
    if (tensor == nullptr) return head_dim / 2;
    if (tensor->type != GgmlType::kF32 || tensor->dims != std::vector<int64_t>{head_dim / 2}) {
      return Fail("{}: {}: expected {} values in F32", file_.where(), kGgufRopeFactors,
                  head_dim / 2);
    }
    std::vector<float> factors(static_cast<size_t>(head_dim / 2));
    std::memcpy(factors.data(), file_.Bytes(*tensor).data(), factors.size() * sizeof(float));
    const auto still = std::ranges::find_if(factors, [](float factor) { return factor != 1; });
    if (std::all_of(still, factors.end(), [](float factor) { return factor >= kStillPair; })) {
      return static_cast<int>(still - factors.begin());
    }
    return Fail("{}: {}: expected 1 for the pairs that turn, then {}, found others", file_.where(),
                kGgufRopeFactors, kStillPair);
  }

  const GgufFile& file() const { return file_; }

 private:
  const GgufFile& file_;
};

// Whether full layers lack "attn_v" and take their keys; all or none of those that own KV.
Result<bool> KeysAreValues(const GgufFile& file, const std::vector<bool>& is_sliding, int n_own) {
  int n_full = 0;
  int n_without = 0;
  for (int i = 0; i < n_own; ++i) {
    if (is_sliding[i]) continue;
    ++n_full;
    const bool has_v = file.header().FindTensor(fmt::format("blk.{}.attn_v.weight", i)) != nullptr;
    n_without += has_v ? 0 : 1;
  }
  if (n_without == 0 || n_without == n_full) return n_without > 0;
  return Fail("{}: attn_v is missing in {} of {} full-attention layers, expected all or none",
              file.where(), n_without, n_full);
}

Status ReadLayers(const GgufFields& fields, Json& json) {
  NIBBLE_ASSIGN_OR_RETURN(const int n_layers, fields.Int("block_count"));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<bool> is_sliding, fields.IsSliding(n_layers));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int> widths,
                          fields.PerLayerInts("feed_forward_length", n_layers));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int> n_kv_heads,
                          fields.PerLayerInts("attention.head_count_kv", n_layers));
  NIBBLE_ASSIGN_OR_RETURN(const int n_shared, fields.Int("attention.shared_kv_layers", 0));
  NIBBLE_ASSIGN_OR_RETURN(const int full_dim, fields.Int("attention.key_length"));
  NIBBLE_ASSIGN_OR_RETURN(const int sliding_dim, fields.Int("attention.key_length_swa"));
  if (n_layers < 1 || n_shared >= n_layers) {
    return Fail("{}: {} layers, of which {} share KV", fields.file().where(), n_layers, n_shared);
  }
  NIBBLE_ASSIGN_OR_RETURN(json["attention_k_eq_v"],
                          KeysAreValues(fields.file(), is_sliding, n_layers - n_shared));
  json["num_hidden_layers"] = n_layers;
  json["num_kv_shared_layers"] = n_shared;
  json["intermediate_size"] = widths.front();
  json["use_double_wide_mlp"] = widths.back() != widths.front();
  json["head_dim"] = sliding_dim;
  json["num_key_value_heads"] = n_kv_heads.front();
  for (int i = 0; i < n_layers; ++i) {
    json["layer_types"].push_back(is_sliding[i] ? "sliding_attention" : "full_attention");
    json["per_layer_config"][std::to_string(i)] = {
        {"head_dim", is_sliding[i] ? sliding_dim : full_dim},
        {"num_key_value_heads", n_kv_heads[i]}};
  }
  return {};
}

Status ReadRope(const GgufFields& fields, Json& json) {
  NIBBLE_ASSIGN_OR_RETURN(const float full_theta, fields.Float("rope.freq_base"));
  NIBBLE_ASSIGN_OR_RETURN(const float sliding_theta, fields.Float("rope.freq_base_swa", 10'000));
  NIBBLE_ASSIGN_OR_RETURN(const int full_dim, fields.Int("attention.key_length"));
  NIBBLE_ASSIGN_OR_RETURN(const int n_turning, fields.RotatingPairs(full_dim));
  // Half a pair more than turn, so that rounding down gives back the number whatever the quotient.
  const double share = std::min(1.0, (n_turning + 0.25) / (full_dim * 0.5));
  json["rope_parameters"] = {
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", sliding_theta}}},
      {"full_attention",
       {{"rope_type", "proportional"},
        {"rope_theta", full_theta},
        {"partial_rotary_factor", share}}}};
  return {};
}

Status ReadExperts(const GgufFields& fields, Json& json) {
  NIBBLE_ASSIGN_OR_RETURN(const int n_experts, fields.Int("expert_count", 0));
  json["enable_moe_block"] = n_experts > 0;
  if (n_experts == 0) return {};
  json["num_experts"] = n_experts;
  NIBBLE_ASSIGN_OR_RETURN(json["top_k_experts"], fields.Int("expert_used_count"));
  NIBBLE_ASSIGN_OR_RETURN(json["moe_intermediate_size"], fields.Int("expert_feed_forward_length"));
  return {};
}

Status CheckWidths(const GgufFields& fields, const Config& config) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int> widths,
                          fields.PerLayerInts("feed_forward_length", config.n_layers()));
  for (int i = 0; i < config.n_layers(); ++i) {
    if (config.layers[i].mlp_width == widths[i]) continue;
    return Fail("{}: key {}: layer {} has {}, expected {}", fields.file().where(),
                GgufKey("feed_forward_length"), i, widths[i], config.layers[i].mlp_width);
  }
  return {};
}

}  // namespace

Result<std::vector<GgufEntry>> GgufConfig(const Config& config) {
  NIBBLE_RETURN_IF_ERROR(CheckExpressible(config));
  const LayerConfig& full = LastOfKind(config, false);
  const LayerConfig& sliding = LastOfKind(config, true);
  std::vector<GgufEntry> entries = {{"general.architecture", std::string(kGgufArchitecture)}};
  const auto add = [&](std::string_view name, GgufValue value) {
    entries.push_back({GgufKey(name), std::move(value)});
  };
  const auto add_int = [&](std::string_view name, int value) {
    add(name, static_cast<uint32_t>(value));
  };
  add_int("block_count", config.n_layers());
  add_int("context_length", config.max_position_embeddings);
  add_int("embedding_length", config.hidden_size);
  add_int("embedding_length_per_layer_input", config.ple_width);
  add_int("vocab_size", config.vocab_size);
  add("feed_forward_length", PerLayer(config, [](const LayerConfig& l) { return l.mlp_width; }));
  add_int("attention.head_count", config.n_heads);
  add("attention.head_count_kv",
      PerLayer(config, [](const LayerConfig& l) { return l.n_kv_heads; }));
  add_int("attention.key_length", full.head_dim);
  add_int("attention.value_length", full.head_dim);
  add_int("attention.key_length_swa", sliding.head_dim);
  add_int("attention.value_length_swa", sliding.head_dim);
  add("attention.layer_norm_rms_epsilon", config.rms_norm_eps);
  add_int("attention.sliding_window", config.sliding_window);
  std::vector<bool> pattern;
  pattern.reserve(config.layers.size());
  for (const LayerConfig& layer : config.layers) pattern.push_back(layer.is_sliding);
  add("attention.sliding_window_pattern", GgufArray{std::move(pattern)});
  add_int("attention.shared_kv_layers", config.n_layers() - config.first_shared_layer());
  // All pairs of full layers: those that stand still do so by kGgufRopeFactors.
  add_int("rope.dimension_count", full.head_dim);
  add_int("rope.dimension_count_swa", sliding.head_dim);
  add("rope.freq_base", static_cast<float>(full.rope_theta));
  add("rope.freq_base_swa", static_cast<float>(sliding.rope_theta));
  add("final_logit_softcapping", config.final_logit_softcapping);  // 0: none
  if (config.n_experts > 0) {
    add_int("expert_count", config.n_experts);
    add_int("expert_used_count", config.top_k_experts);
    add_int("expert_feed_forward_length", config.moe_width);
  }
  return entries;
}

std::vector<float> GgufRopeFactors(const Config& config) {
  const LayerConfig& full = LastOfKind(config, false);
  std::vector<float> factors(static_cast<size_t>(full.head_dim / 2), kStillPair);
  std::fill_n(factors.begin(), full.n_rotating_pairs, 1.0F);
  return factors;
}

Result<Config> ConfigFromGguf(const GgufFile& file) {
  NIBBLE_ASSIGN_OR_RETURN(
      const std::string architecture,
      checkpoint::GetGguf<std::string>(file.header(), "general.architecture", file.where()));
  if (architecture != kGgufArchitecture) {
    return Fail("{}: general.architecture: expected {}, found {}", file.where(), kGgufArchitecture,
                QuoteForMessage(architecture));
  }
  const GgufFields fields(file);
  Json json = {{"architectures", {"Gemma4ForCausalLM"}}, {"model_type", "gemma4_text"}};
  NIBBLE_ASSIGN_OR_RETURN(json["max_position_embeddings"], fields.Int("context_length"));
  NIBBLE_ASSIGN_OR_RETURN(json["hidden_size"], fields.Int("embedding_length"));
  NIBBLE_ASSIGN_OR_RETURN(json["num_attention_heads"], fields.Int("attention.head_count"));
  NIBBLE_ASSIGN_OR_RETURN(json["sliding_window"], fields.Int("attention.sliding_window"));
  NIBBLE_ASSIGN_OR_RETURN(json["rms_norm_eps"], fields.Float("attention.layer_norm_rms_epsilon"));
  NIBBLE_ASSIGN_OR_RETURN(json["vocab_size"], fields.TableRows("token_embd.weight"));
  NIBBLE_ASSIGN_OR_RETURN(const int ple_width, fields.Int("embedding_length_per_layer_input", 0));
  json["hidden_size_per_layer_input"] = ple_width;
  if (ple_width > 0) {
    NIBBLE_ASSIGN_OR_RETURN(json["vocab_size_per_layer_input"],
                            fields.TableRows("per_layer_token_embd.weight"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const float cap,
                          fields.Float("final_logit_softcapping", kDefaultSoftcap));
  if (cap != 0) json["final_logit_softcapping"] = cap;
  json["tie_word_embeddings"] = file.header().FindTensor("output.weight") == nullptr;
  NIBBLE_RETURN_IF_ERROR(ReadLayers(fields, json));
  NIBBLE_RETURN_IF_ERROR(ReadRope(fields, json));
  NIBBLE_RETURN_IF_ERROR(ReadExperts(fields, json));
  NIBBLE_ASSIGN_OR_RETURN(Config config, ParseConfig(std::move(json), file.where()));
  NIBBLE_RETURN_IF_ERROR(CheckWidths(fields, config));
  return config;
}

}  // namespace nibble::gemma
