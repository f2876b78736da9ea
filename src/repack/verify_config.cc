#include "repack/verify_config.h"

#include <algorithm>
#include <array>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "gemma/tensors.h"

namespace nibble::repack {
namespace {

constexpr std::string_view kPacked = ".weight_packed";
constexpr std::string_view kPlain = ".weight";

// Longer names are refused: std::regex recurses along them.
constexpr size_t kMaxNameBytes = 512;

// object[key], or null.
Json Member(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object.at(key) : Json();
}

// A module name as the loaders know it: Hugging Face's, and vLLM's of the multimodal model.
std::vector<std::string> Spellings(const std::string& module) {
  constexpr std::string_view kNested = "model.language_model.";
  constexpr std::string_view kModel = "model.";
  if (module.starts_with(kNested)) {
    return {module, "language_model.model." + module.substr(kNested.size())};
  }
  const std::optional<gemma::Part> part = gemma::PartOf(module + std::string(kPlain));
  const bool is_tower = part == gemma::Part::kVision || part == gemma::Part::kAudio;
  if (is_tower) return {module, module.substr(kModel.size())};
  return {module};
}

// A list of exact names and, after "re:", patterns that must match from the first character on.
class NameRules {
 public:
  static Result<NameRules> Parse(const Json& object, const char* key) {
    const Json list = Member(object, key);
    if (!list.is_array()) return Fail("quantization_config {}: expected a list", key);
    NameRules rules;
    for (const Json& rule : list) {
      if (!rule.is_string()) return Fail("quantization_config {}: expected strings", key);
      const auto text = rule.get<std::string>();
      if (!text.starts_with("re:")) {
        rules.names_.push_back(text);
        continue;
      }
      try {
        rules.patterns_.emplace_back(text.substr(3));
      } catch (const std::regex_error& error) {
        return Fail("quantization_config {}: pattern {}: {}", key, text, error.what());
      }
    }
    return rules;
  }

  bool Matches(const std::string& name) const {
    return std::ranges::find(names_, name) != names_.end() ||
           std::ranges::any_of(patterns_, [&](const std::regex& pattern) {
             return std::regex_search(name, pattern, std::regex_constants::match_continuous);
           });
  }

 private:
  std::vector<std::string> names_;
  std::vector<std::regex> patterns_;
};

bool IsTable(std::string_view module) {
  return module.ends_with("embed_tokens") || module.ends_with("embed_tokens_per_layer");
}

Status CheckScheme(const Json& quantization, const Json& group) {
  const auto expect = [](const Json& object, const char* key, const Json& expected) -> Status {
    const Json found = Member(object, key);
    if (found == expected) return {};
    return Fail("quantization_config {}: expected {}, found {}", key, expected.dump(),
                found.dump());
  };
  NIBBLE_RETURN_IF_ERROR(expect(quantization, "quant_method", "compressed-tensors"));
  NIBBLE_RETURN_IF_ERROR(expect(quantization, "format", "pack-quantized"));
  NIBBLE_RETURN_IF_ERROR(expect(group, "input_activations", nullptr));
  const Json weights = Member(group, "weights");
  NIBBLE_RETURN_IF_ERROR(expect(weights, "num_bits", 4));
  NIBBLE_RETURN_IF_ERROR(expect(weights, "type", "int"));
  NIBBLE_RETURN_IF_ERROR(expect(weights, "symmetric", true));
  NIBBLE_RETURN_IF_ERROR(expect(weights, "strategy", "group"));
  return expect(weights, "group_size", 32);
}

Status CheckModules(const checkpoint::Checkpoint& output, const NameRules& targets,
                    const NameRules& ignore) {
  for (const checkpoint::Tensor& tensor : output.tensors()) {
    const std::string& name = tensor.info.name;
    const bool is_packed = name.ends_with(kPacked);
    if (!is_packed && !(name.ends_with(kPlain) && tensor.info.shape.size() == 2)) continue;
    if (name.size() > kMaxNameBytes) return Fail("a tensor name of {} bytes", name.size());
    const std::string module = name.substr(0, name.size() - (is_packed ? kPacked : kPlain).size());
    const bool is_linear = !IsTable(module) && module != "lm_head";
    for (const std::string& spelling : Spellings(module)) {
      const bool is_target = targets.Matches(spelling) || (is_linear && targets.Matches("Linear"));
      const bool is_ignored = ignore.Matches(spelling);
      if (is_packed && (!is_target || is_ignored)) {
        return Fail("quantization_config: module {} is packed, but {}", spelling,
                    is_ignored ? "\"ignore\" matches it" : "no target matches it");
      }
      if (!is_packed && is_target && !is_ignored) {
        return Fail(
            "quantization_config: module {} is not packed, but a target matches it and "
            "\"ignore\" does not",
            spelling);
      }
    }
  }
  return {};
}

// The text model's facts, wherever they stand.
Json TextConfig(const Json& config) {
  const Json text = Member(config, "text_config");
  return text.is_object() ? text : config;
}

Status CheckArchitecture(const Json& source, const Json& output) {
  // What a text-only, packed form may spell differently without being another model.
  constexpr std::array<std::string_view, 10> kFree = {
      "architectures",       "model_type",          "tie_word_embeddings", "dtype",
      "torch_dtype",         "bos_token_id",        "eos_token_id",        "pad_token_id",
      "quantization_config", "transformers_version"};
  for (const auto& [key, expected] : source.items()) {
    if (std::ranges::find(kFree, key) != kFree.end()) continue;
    const Json found = Member(output, key.c_str());
    if (found == expected) continue;
    return Fail("{}: expected the source's {}, found {}", key, expected.dump(), found.dump());
  }
  return {};
}

}  // namespace

Status CheckConfig(const Json& source_config, const Json& config,
                   const checkpoint::Checkpoint& output) {
  NIBBLE_RETURN_IF_ERROR(CheckArchitecture(TextConfig(source_config), TextConfig(config)));
  const Json quantization = Member(config, "quantization_config");
  if (!quantization.is_object()) return Fail("no quantization_config");
  const Json groups = Member(quantization, "config_groups");
  if (!groups.is_object() || groups.size() != 1 || !groups.front().is_object()) {
    return Fail("quantization_config config_groups: expected one group, found {}", groups.size());
  }
  const Json& group = groups.front();
  NIBBLE_RETURN_IF_ERROR(CheckScheme(quantization, group));
  NIBBLE_ASSIGN_OR_RETURN(const NameRules targets, NameRules::Parse(group, "targets"));
  NIBBLE_ASSIGN_OR_RETURN(const NameRules ignore, NameRules::Parse(quantization, "ignore"));
  NIBBLE_RETURN_IF_ERROR(CheckModules(output, targets, ignore));
  if (output.Find("lm_head.weight_packed") == nullptr) return {};
  for (const Json& level : {config, TextConfig(config)}) {
    if (Member(level, "tie_word_embeddings") != false) {
      return Fail("tie_word_embeddings: expected false beside a packed lm_head");
    }
  }
  return {};
}

}  // namespace nibble::repack
