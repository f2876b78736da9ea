#include "repack/verify_config.h"

#include <algorithm>
#include <array>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "gemma/tensors.h"

namespace nibble::repack {
namespace {

constexpr std::string_view kPacked = ".weight_packed";

// Longer names are refused: std::regex recurses along them.
constexpr size_t kMaxNameBytes = 512;

// object[key], or null.
Json Member(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object.at(key) : Json();
}

// A module name as the loaders know it: Hugging Face's, and vLLM's of the multimodal model.
std::vector<std::string> LoaderNames(const std::string& module) {
  constexpr std::string_view kNested = "model.language_model.";
  constexpr std::string_view kModel = "model.";
  if (module.starts_with(kNested)) {
    return {module, "language_model.model." + module.substr(kNested.size())};
  }
  const std::optional<gemma::Part> part = gemma::PartOf(module + std::string(kWeightSuffix));
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

Status Expect(const Json& object, const char* key, const Json& expected) {
  const Json found = Member(object, key);
  if (found == expected) return {};
  return Fail("quantization_config {}: expected {}, found {}", key, expected.dump(), found.dump());
}

enum class Form { kPlain, kInt4, kInt8 };

constexpr const char* Name(Form form) {
  switch (form) {
    case Form::kPlain:
      return "not packed";
    case Form::kInt4:
      return "packed as int4";
    case Form::kInt8:
      return "packed as int8";
  }
  return "";
}

// One of config_groups.
struct ConfigGroup {
  NameRules targets;
  Form form = Form::kInt4;
};

Result<ConfigGroup> ParseGroup(const Json& quantization, const Json& group, bool is_only_one) {
  NIBBLE_ASSIGN_OR_RETURN(NameRules targets, NameRules::Parse(group, "targets"));
  const Json weights = Member(group, "weights");
  const bool is_int8 = Member(weights, "num_bits") == 8;
  NIBBLE_RETURN_IF_ERROR(Expect(weights, "num_bits", is_int8 ? 8 : 4));
  NIBBLE_RETURN_IF_ERROR(Expect(weights, "type", "int"));
  NIBBLE_RETURN_IF_ERROR(Expect(weights, "symmetric", true));
  NIBBLE_RETURN_IF_ERROR(Expect(weights, "strategy", is_int8 ? "channel" : "group"));
  if (is_int8) {
    const Json inputs = Member(group, "input_activations");
    NIBBLE_RETURN_IF_ERROR(Expect(inputs, "num_bits", 8));
    NIBBLE_RETURN_IF_ERROR(Expect(inputs, "type", "int"));
    NIBBLE_RETURN_IF_ERROR(Expect(inputs, "symmetric", true));
    NIBBLE_RETURN_IF_ERROR(Expect(inputs, "strategy", "token"));
    NIBBLE_RETURN_IF_ERROR(Expect(inputs, "dynamic", true));
  } else {
    NIBBLE_RETURN_IF_ERROR(Expect(group, "input_activations", nullptr));
    NIBBLE_RETURN_IF_ERROR(Expect(weights, "group_size", 32));
  }
  NIBBLE_RETURN_IF_ERROR(Expect(is_only_one ? quantization : group, "format",
                                is_int8 ? "int-quantized" : "pack-quantized"));
  return ConfigGroup{std::move(targets), is_int8 ? Form::kInt8 : Form::kInt4};
}

Result<std::vector<ConfigGroup>> ParseGroups(const Json& quantization) {
  NIBBLE_RETURN_IF_ERROR(Expect(quantization, "quant_method", "compressed-tensors"));
  const Json groups = Member(quantization, "config_groups");
  if (!groups.is_object() || groups.empty()) {
    return Fail("quantization_config config_groups: expected at least one group");
  }
  const bool is_only_one = groups.size() == 1;
  if (!is_only_one) NIBBLE_RETURN_IF_ERROR(Expect(quantization, "format", "mixed-precision"));
  std::vector<ConfigGroup> result;
  for (const Json& group : groups) {
    NIBBLE_ASSIGN_OR_RETURN(ConfigGroup parsed, ParseGroup(quantization, group, is_only_one));
    result.push_back(std::move(parsed));
  }
  return result;
}

// What a loader expects a module to be: the first group that names it, else the one that names its
// class.
Form ExpectedForm(const std::string& spelling, bool is_linear,
                  const std::vector<ConfigGroup>& groups, const NameRules& ignore) {
  if (ignore.Matches(spelling)) return Form::kPlain;
  for (const ConfigGroup& group : groups) {
    if (group.targets.Matches(spelling)) return group.form;
  }
  for (const ConfigGroup& group : groups) {
    if (is_linear && group.targets.Matches("Linear")) return group.form;
  }
  return Form::kPlain;
}

Status CheckModules(const checkpoint::Checkpoint& output, const std::vector<ConfigGroup>& groups,
                    const NameRules& ignore) {
  for (const checkpoint::Tensor& tensor : output.tensors()) {
    const std::string& name = tensor.info.name;
    const bool is_int4 = name.ends_with(kPacked);
    if (!is_int4 && !(name.ends_with(kWeightSuffix) && tensor.info.shape.size() == 2)) continue;
    if (name.size() > kMaxNameBytes) return Fail("a tensor name of {} bytes", name.size());
    const std::string module =
        name.substr(0, name.size() - (is_int4 ? kPacked : kWeightSuffix).size());
    const bool is_int8 = tensor.info.dtype == DType::kI8;
    const Form form = is_int4 ? Form::kInt4 : (is_int8 ? Form::kInt8 : Form::kPlain);
    const bool is_linear = !IsTable(module) && module != "lm_head";
    for (const std::string& spelling : LoaderNames(module)) {
      const Form expected = ExpectedForm(spelling, is_linear, groups, ignore);
      if (form == expected) continue;
      return Fail("quantization_config: module {} is {}, but by targets and \"ignore\" {}",
                  spelling, Name(form), Name(expected));
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
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<ConfigGroup> groups, ParseGroups(quantization));
  NIBBLE_ASSIGN_OR_RETURN(const NameRules ignore, NameRules::Parse(quantization, "ignore"));
  NIBBLE_RETURN_IF_ERROR(CheckModules(output, groups, ignore));
  if (output.Find("lm_head.weight_packed") == nullptr) return {};
  for (const Json& level : {config, TextConfig(config)}) {
    if (Member(level, "tie_word_embeddings") != false) {
      return Fail("tie_word_embeddings: expected false beside a packed lm_head");
    }
  }
  return {};
}

}  // namespace nibble::repack
