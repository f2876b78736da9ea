#include "repack/output_config.h"

#include <array>
#include <string>
#include <string_view>

#include "repack/grid.h"

namespace nibble::repack {
namespace {

// vLLM's name of a module of the multimodal model: "model.language_model.layers.0" there is
// "language_model.model.layers.0".
std::string VllmName(std::string_view module) {
  constexpr std::string_view kNested = "model.language_model.";
  return "language_model.model." + std::string(module.substr(kNested.size()));
}

Json Ignore(const Plan& plan, const Options& options) {
  Json ignore = Json::array();
  if (options.format == Format::kQ4W4A16) {
    ignore.push_back("lm_head");
    if (options.keep_towers) ignore.push_back("language_model.lm_head");
  }
  for (const std::string& module : plan.unpacked_linears) {
    ignore.push_back(module);
    if (module.starts_with("model.language_model.")) ignore.push_back(VllmName(module));
  }
  // Matched from the name's first character on; vLLM drops the leading "model.".
  for (const std::string& tower : plan.kept_towers) {
    ignore.push_back("re:(model\\.)?" + tower + "\\..*");
  }
  return ignore;
}

Json QuantizationConfig(const Plan& plan, const Options& options) {
  Json targets = {"Linear"};
  if (options.format == Format::kQ4W4A16Emb4) {
    for (const char* table :
         {"re:.*embed_tokens$", "re:.*embed_tokens_per_layer$", "re:.*lm_head$"}) {
      targets.push_back(table);
    }
  }
  const Json weights = {{"num_bits", 4},
                        {"type", "int"},
                        {"symmetric", true},
                        {"strategy", "group"},
                        {"group_size", kGridGroup},
                        {"dynamic", false}};
  const Json group = {{"targets", targets},
                      {"input_activations", nullptr},
                      {"output_activations", nullptr},
                      {"weights", weights}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}},
          {"ignore", Ignore(plan, options)}};
}

}  // namespace

Json OutputConfig(const gemma::Config& config, const Plan& plan, const Options& options) {
  const bool is_tied = config.tie_word_embeddings && options.format != Format::kQ4W4A16Emb4;
  const bool is_nested = config.json.contains("text_config");
  Json text = is_nested ? config.json.at("text_config") : config.json;
  text["tie_word_embeddings"] = is_tied;
  // transformers' default is 256, which would invent tables in a model that has none.
  text["hidden_size_per_layer_input"] = config.ple_width;
  text.erase("quantization_config");

  Json result;
  if (options.keep_towers && is_nested) {
    result = config.json;
    result["text_config"] = text;
    result["tie_word_embeddings"] = is_tied;
  } else {
    result = text;
    result["architectures"] = {"Gemma4ForCausalLM"};
    result["model_type"] = "gemma4_text";
    result.erase("torch_dtype");
    result["dtype"] = "bfloat16";
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      if (config.json.contains(key)) result[key] = config.json.at(key);
    }
  }
  result["quantization_config"] = QuantizationConfig(plan, options);
  return result;
}

}  // namespace nibble::repack
