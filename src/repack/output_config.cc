#include "repack/output_config.h"

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

bool PacksTables(Format format) {
  return format == Format::kQ4W4A16Emb4 || format == Format::kW8A8Emb4;
}

Json Ignore(const gemma::Config& config, const Plan& plan, const Options& options) {
  Json ignore = Json::array();
  if (!PacksTables(options.format)) {
    ignore.push_back("lm_head");
    if (options.keep_towers) ignore.push_back("language_model.lm_head");
  }
  if (config.n_experts > 0) ignore.push_back("re:.*\\.router\\.proj$");
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

// A scheme of compressed-tensors: which modules, their weights, their inputs.
Json Group(const Json& targets, Encoding encoding) {
  if (encoding == Encoding::kInt8Channel) {
    return {{"targets", targets},
            {"input_activations",
             {{"num_bits", 8},
              {"type", "int"},
              {"symmetric", true},
              {"strategy", "token"},
              {"dynamic", true}}},
            {"output_activations", nullptr},
            {"weights",
             {{"num_bits", 8},
              {"type", "int"},
              {"symmetric", true},
              {"strategy", "channel"},
              {"dynamic", false}}}};
  }
  return {{"targets", targets},
          {"input_activations", nullptr},
          {"output_activations", nullptr},
          {"weights",
           {{"num_bits", 4},
            {"type", "int"},
            {"symmetric", true},
            {"strategy", "group"},
            {"group_size", kGridGroup},
            {"dynamic", false}}}};
}

Json QuantizationConfig(const gemma::Config& config, const Plan& plan, const Options& options) {
  constexpr const char* kInt4 = "pack-quantized";
  constexpr const char* kInt8 = "int-quantized";
  Json linears = {"Linear"};
  const Json tables = {"re:.*embed_tokens$", "re:.*embed_tokens_per_layer$", "re:.*lm_head$"};
  Json result = {{"quant_method", "compressed-tensors"},
                 {"quantization_status", "compressed"},
                 {"ignore", Ignore(config, plan, options)}};
  if (options.format == Format::kW8A8Emb4) {
    Json group_0 = Group(linears, Encoding::kInt8Channel);
    Json group_1 = Group(tables, Encoding::kInt4Group32);
    group_0["format"] = kInt8;
    group_1["format"] = kInt4;
    result["format"] = "mixed-precision";
    result["config_groups"] = {{"group_0", group_0}, {"group_1", group_1}};
    return result;
  }
  const bool is_int8 = options.format == Format::kW8A8;
  if (PacksTables(options.format)) linears.insert(linears.end(), tables.begin(), tables.end());
  const Json group = Group(linears, is_int8 ? Encoding::kInt8Channel : Encoding::kInt4Group32);
  result["format"] = is_int8 ? kInt8 : kInt4;
  result["config_groups"] = {{"group_0", group}};
  return result;
}

}  // namespace

Json OutputConfig(const gemma::Config& config, const Plan& plan, const Options& options) {
  const bool is_tied = config.tie_word_embeddings && !PacksTables(options.format);
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
  result["quantization_config"] = QuantizationConfig(config, plan, options);
  return result;
}

}  // namespace nibble::repack
