#include "repack/verify_gguf_config.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <type_traits>
#include <variant>

namespace nibble::repack {
namespace {

using checkpoint::GgufArray;
using checkpoint::GgufFile;
using checkpoint::GgufValue;
using gemma::LayerConfig;

// A number or truth value as double: every fact of a config is exact in it.
template <typename T>
std::optional<double> AsDouble(const T& value) {
  if constexpr (std::is_arithmetic_v<T>) return static_cast<double>(value);
  return std::nullopt;
}

// Element `index` of an array, or the value itself if it is none.
std::optional<double> NumberAt(const GgufValue& value, size_t index) {
  const auto* const array = std::get_if<GgufArray>(&value);
  if (array == nullptr) return std::visit([](const auto& v) { return AsDouble(v); }, value);
  return std::visit(
      [&](const auto& elements) -> std::optional<double> {
        if (index >= elements.size()) return std::nullopt;
        if constexpr (std::is_same_v<std::decay_t<decltype(elements)>, std::vector<bool>>) {
          return elements[index] ? 1 : 0;
        } else {
          return AsDouble(elements[index]);
        }
      },
      array->elements);
}

class ConfigComparer {
 public:
  ConfigComparer(const GgufFile& file, const gemma::Config& config)
      : file_(file), config_(config) {}

  std::vector<std::string> Run() {
    const GgufValue* const name = file_.header().FindValue("general.architecture");
    const auto* const text = name == nullptr ? nullptr : std::get_if<std::string>(name);
    if (text == nullptr || *text != "gemma4") {
      faults_.emplace_back("general.architecture: expected gemma4");
    }
    Expect("block_count", config_.n_layers());
    Expect("embedding_length", config_.hidden_size);
    Expect("context_length", config_.max_position_embeddings);
    Expect("attention.head_count", config_.n_heads);
    Expect("attention.layer_norm_rms_epsilon", config_.rms_norm_eps);
    Expect("attention.sliding_window", config_.sliding_window);
    Expect("attention.shared_kv_layers", config_.n_layers() - config_.first_shared_layer());
    ExpectOr("embedding_length_per_layer_input", config_.ple_width, 0);
    ExpectOr("final_logit_softcapping", config_.final_logit_softcapping, 30);
    ExpectOr("expert_count", config_.n_experts, 0);
    if (config_.n_experts > 0) {
      Expect("expert_used_count", config_.top_k_experts);
      Expect("expert_feed_forward_length", config_.moe_width);
    }
    ExpectLayers("attention.sliding_window_pattern",
                 [](const LayerConfig& l) { return l.is_sliding; });
    ExpectLayers("attention.head_count_kv", [](const LayerConfig& l) { return l.n_kv_heads; });
    ExpectLayers("feed_forward_length", [](const LayerConfig& l) { return l.mlp_width; });
    for (const LayerConfig& layer : config_.layers) ExpectKind(layer);
    CompareRopeFactors();
    return std::move(faults_);
  }

 private:
  void Expect(const std::string& name, double expected, size_t index = 0) {
    const std::string key = "gemma4." + name;
    const GgufValue* const value = file_.header().FindValue(key);
    const auto found = value == nullptr ? std::nullopt : NumberAt(*value, index);
    if (found == expected) return;
    faults_.push_back(fmt::format("{}: expected {}, found {}", key, expected,
                                  found.has_value() ? fmt::format("{}", *found) : "nothing"));
  }

  // `absent`: what llama.cpp takes where the key is not there.
  void ExpectOr(const std::string& name, double expected, double absent) {
    if (file_.header().FindValue("gemma4." + name) == nullptr && expected == absent) return;
    Expect(name, expected);
  }

  void ExpectLayers(const std::string& name,
                    const std::function<double(const LayerConfig&)>& fact) {
    for (size_t i = 0; i < config_.layers.size(); ++i) Expect(name, fact(config_.layers[i]), i);
  }

  // What readers take as one fact of all layers of a kind; said once for each kind.
  void ExpectKind(const LayerConfig& layer) {
    for (const LayerConfig& earlier : config_.layers) {
      if (&earlier == &layer) break;
      if (earlier.is_sliding == layer.is_sliding && earlier.head_dim == layer.head_dim) return;
    }
    const std::string suffix = layer.is_sliding ? "_swa" : "";
    for (const char* name :
         {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
      Expect(name + suffix, layer.head_dim);
    }
    Expect("rope.freq_base" + suffix, static_cast<float>(layer.rope_theta));
  }

  // The pairs of full layers that stand still are divided until they do.
  void CompareRopeFactors() {
    const LayerConfig& full = config_.layers.back();
    const auto* const tensor = file_.header().FindTensor("rope_freqs.weight");
    if (tensor == nullptr) {
      if (full.n_rotating_pairs < full.head_dim / 2) {
        faults_.emplace_back("rope_freqs.weight is missing: full layers would turn all pairs");
      }
      return;
    }
    const auto bytes = file_.Bytes(*tensor);
    if (bytes.size() != static_cast<size_t>(full.head_dim / 2) * sizeof(float)) {
      faults_.push_back(fmt::format("rope_freqs.weight: expected {} values in F32, found {} bytes",
                                    full.head_dim / 2, bytes.size()));
      return;
    }
    for (int pair = 0; pair < full.head_dim / 2; ++pair) {
      float factor = 0;
      std::memcpy(&factor, &bytes[static_cast<size_t>(pair) * sizeof factor], sizeof factor);
      const bool turns = pair < full.n_rotating_pairs;
      if (turns ? factor == 1 : factor >= 1e30F) continue;
      faults_.push_back(fmt::format("rope_freqs.weight: pair {}: expected {}, found {}", pair,
                                    turns ? "1" : "1e30", factor));
      return;
    }
  }

  const GgufFile& file_;
  const gemma::Config& config_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> GgufConfigFaults(const GgufFile& file, const gemma::Config& config) {
  return ConfigComparer(file, config).Run();
}

}  // namespace nibble::repack
