#include "gemma/config.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble::gemma {
namespace {

// The text model of E2B, with the numbers of its public config.json.
Json E2bText() {
  Json layer_types = Json::array();
  for (int i = 1; i <= 35; ++i) {
    layer_types.push_back(i % 5 == 0 ? "full_attention" : "sliding_attention");
  }
  return {{"model_type", "gemma4_text"},
          {"hidden_size", 1536},
          {"intermediate_size", 6144},
          {"num_hidden_layers", 35},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 1},
          {"num_global_key_value_heads", nullptr},
          {"head_dim", 256},
          {"global_head_dim", 512},
          {"sliding_window", 512},
          {"layer_types", layer_types},
          {"num_kv_shared_layers", 20},
          {"use_double_wide_mlp", true},
          {"final_logit_softcapping", 30.0}};
}

Json E2b() {
  return {{"architectures", {"Gemma4ForConditionalGeneration"}},
          {"model_type", "gemma4"},
          {"tie_word_embeddings", true},
          {"text_config", E2bText()}};
}

Config Parse(const Json& json) {
  Result<Config> config = ParseConfig(json, "config.json");
  EXPECT_TRUE(config.has_value()) << config.error().message;
  return config.has_value() ? *std::move(config) : Config();
}

std::string ErrorOf(const Json& json) {
  const Result<Config> config = ParseConfig(json, "config.json");
  return config.has_value() ? "no error" : config.error().message;
}

// The error after one key of E2B's text_config is set to `value`.
std::string ErrorWith(const char* key, const Json& value) {
  Json json = E2b();
  json["text_config"][key] = value;
  return ErrorOf(json);
}

TEST(ConfigTest, E2b) {
  const Config config = Parse(E2b());
  EXPECT_EQ(config.layout, Layout::kMultimodal);
  EXPECT_EQ(config.hidden_size, 1536);
  EXPECT_EQ(config.vocab_size, 262'144);
  EXPECT_EQ(config.ple_width, 256);
  EXPECT_EQ(config.ple_vocab_size, 262'144);
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_FLOAT_EQ(config.final_logit_softcapping, 30);
  EXPECT_EQ(config.n_experts, 0);
  EXPECT_EQ(config.n_layers(), 35);
  EXPECT_EQ(config.first_shared_layer(), 15);

  const LayerConfig& sliding = config.layers[15];
  EXPECT_TRUE(sliding.is_sliding);
  EXPECT_EQ(sliding.kv_owner_layer, 13);
  EXPECT_EQ(sliding.head_dim, 256);
  EXPECT_EQ(sliding.mlp_width, 12288);
  EXPECT_EQ(sliding.rope_theta, 10'000);
  EXPECT_EQ(sliding.n_rotating_pairs, 128);
  const LayerConfig& full = config.layers[34];
  EXPECT_FALSE(full.is_sliding);
  EXPECT_EQ(full.kv_owner_layer, 14);
  EXPECT_EQ(full.head_dim, 512);
  EXPECT_EQ(full.n_kv_heads, 1);
  EXPECT_EQ(full.rope_theta, 1'000'000);
  EXPECT_EQ(full.n_rotating_pairs, 64);
  EXPECT_EQ(config.layers[14].mlp_width, 6144);
  EXPECT_EQ(config.layers[14].kv_owner_layer, 14);
}

// Defaults of Gemma4TextConfig for a config that states nothing.
TEST(ConfigTest, DefaultsAreThoseOfTransformers) {
  const Config config = Parse({{"model_type", "gemma4_text"}});
  EXPECT_EQ(config.layout, Layout::kTextOnly);
  EXPECT_EQ(config.hidden_size, 2304);
  EXPECT_EQ(config.n_layers(), 30);
  EXPECT_EQ(config.n_heads, 8);
  EXPECT_EQ(config.sliding_window, 512);
  EXPECT_EQ(config.ple_width, 256);  // the trap: absent does not mean none
  EXPECT_EQ(config.max_position_embeddings, 131'072);
  EXPECT_EQ(config.final_logit_softcapping, 0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.first_shared_layer(), 30);
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(config.layers[i].is_sliding, i % 6 != 5) << i;
    EXPECT_EQ(config.layers[i].n_kv_heads, 4) << i;
    EXPECT_EQ(config.layers[i].head_dim, i % 6 == 5 ? 512 : 256) << i;
    EXPECT_EQ(config.layers[i].mlp_width, 9216) << i;
  }
}

TEST(ConfigTest, UnifiedDefaultsDiffer) {
  const Config config = Parse({{"model_type", "gemma4_unified_text"}});
  EXPECT_EQ(config.sliding_window, 1024);
  EXPECT_EQ(config.ple_width, 0);
  EXPECT_EQ(config.max_position_embeddings, 262'144);
}

TEST(ConfigTest, DefaultPatternEndsInAFullLayer) {
  const Config config = Parse({{"model_type", "gemma4_text"}, {"num_hidden_layers", 8}});
  EXPECT_FALSE(config.layers[7].is_sliding);
}

TEST(ConfigTest, GlobalKvHeadsCountOnlyWithKEqV) {
  Json json = {
      {"model_type", "gemma4_text"}, {"num_hidden_layers", 6}, {"num_global_key_value_heads", 2}};
  EXPECT_EQ(Parse(json).layers[5].n_kv_heads, 4);
  json["attention_k_eq_v"] = true;
  const Config config = Parse(json);
  EXPECT_EQ(config.layers[5].n_kv_heads, 2);
  EXPECT_TRUE(config.layers[5].k_eq_v);
  EXPECT_EQ(config.layers[4].n_kv_heads, 4);
  EXPECT_FALSE(config.layers[4].k_eq_v);
}

TEST(ConfigTest, PerLayerConfigWins) {
  Json json = {
      {"model_type", "gemma4_text"},
      {"num_hidden_layers", 6},
      {"head_dim", 64},
      {"global_head_dim", 512},
      {"per_layer_config", {{"5", {{"head_dim", 128}}}, {"2", {{"num_key_value_heads", 1}}}}}};
  const Config config = Parse(json);
  EXPECT_EQ(config.layers[5].head_dim, 128);
  EXPECT_EQ(config.layers[5].n_kv_heads, 4);
  EXPECT_EQ(config.layers[2].head_dim, 64);
  EXPECT_EQ(config.layers[2].n_kv_heads, 1);
  json["per_layer_config"] = Json::object();
  EXPECT_EQ(Parse(json).layers[5].head_dim, 64);
}

TEST(ConfigTest, RopeParameters) {
  Json json = {{"model_type", "gemma4_text"},
               {"rope_parameters",
                {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5000}}},
                 {"full_attention",
                  {{"rope_type", "proportional"},
                   {"rope_theta", 2e6},
                   {"partial_rotary_factor", 0.5},
                   {"factor", 1.0}}}}}};
  const Config config = Parse(json);
  EXPECT_EQ(config.layers[0].rope_theta, 5000);
  EXPECT_EQ(config.layers[5].rope_theta, 2e6);
  EXPECT_EQ(config.layers[5].n_rotating_pairs, 128);
  Json& full = json["rope_parameters"]["full_attention"];
  full["factor"] = 8.0;
  EXPECT_NE(ErrorOf(json).find("full_attention: factor: expected 1.0, found \"8.0\""),
            std::string::npos)
      << ErrorOf(json);
  full["factor"] = nullptr;
  full["partial_rotary_factor"] = 1.5;
  EXPECT_NE(ErrorOf(json).find("partial_rotary_factor"), std::string::npos) << ErrorOf(json);
  full["rope_type"] = "yarn";
  EXPECT_NE(ErrorOf(json).find("\\\"yarn\\\""), std::string::npos) << ErrorOf(json);
  json["rope_parameters"].erase("full_attention");
  EXPECT_NE(ErrorOf(json).find("full_attention is missing"), std::string::npos) << ErrorOf(json);
}

TEST(ConfigTest, MoeNeedsItsSizes) {
  Json json = {{"architectures", {"Gemma4ForCausalLM"}},
               {"model_type", "gemma4_text"},
               {"enable_moe_block", true},
               {"num_experts", 128},
               {"top_k_experts", 8},
               {"moe_intermediate_size", 704}};
  const Config config = Parse(json);
  EXPECT_EQ(config.n_experts, 128);
  EXPECT_EQ(config.top_k_experts, 8);
  EXPECT_EQ(config.moe_width, 704);
  json["top_k_experts"] = 129;
  EXPECT_NE(ErrorOf(json).find("top_k_experts: expected an integer from 1 to 128"),
            std::string::npos);
  json.erase("num_experts");
  EXPECT_NE(ErrorOf(json).find("num_experts is missing"), std::string::npos);
  json["enable_moe_block"] = false;
  EXPECT_EQ(Parse(json).n_experts, 0);
}

TEST(ConfigTest, ErrorsNameTheKey) {
  const struct {
    const char* key;
    Json value;
    const char* message;
  } kCases[] = {
      {"hidden_size", 0, "text_config: hidden_size: expected an integer from 1 to 1048576"},
      {"hidden_size", "1536", "found \"\\\"1536\\\"\""},
      {"hidden_size", 1536.5, "hidden_size"},
      {"hidden_size", 18446744073709551615u, "hidden_size"},
      {"hidden_size", nullptr, "hidden_size is missing"},
      {"num_hidden_layers", 1'000'000'000, "num_hidden_layers: expected an integer from 1 to 1024"},
      {"num_hidden_layers", 34, "layer_types: expected a list of 34 names"},
      {"vocab_size", -1, "vocab_size"},
      {"head_dim", 255, "head dim of layer 0: expected an even number, found 255"},
      {"num_attention_heads", 0, "num_attention_heads"},
      {"num_key_value_heads", 3,
       "num_attention_heads: 8 is not a multiple of layer 0's 3 KV heads"},
      {"num_kv_shared_layers", 35, "num_kv_shared_layers"},
      {"num_kv_shared_layers", 32, "layer 4 shares the KV of a full_attention layer"},
      {"hidden_activation", "silu", "hidden_activation: expected \"gelu_pytorch_tanh\""},
      {"attention_bias", true, "attention_bias: expected false"},
      {"use_bidirectional_attention", "all", "use_bidirectional_attention"},
      {"use_double_wide_mlp", 1, "use_double_wide_mlp: expected true or false"},
      {"final_logit_softcapping", 0, "final_logit_softcapping: expected a positive number"},
      {"rms_norm_eps", 1e300, "rms_norm_eps"},
      {"rope_parameters", 7, "rope_parameters: expected an object"},
      {"per_layer_config", {{"35", Json::object()}}, "\"35\" is not the index of a layer"},
      {"per_layer_config", {{"-1", Json::object()}}, "\"-1\" is not the index of a layer"},
      {"per_layer_config", {{"1", {{"sk\nip", "mlp"}}}}, "per_layer_config: 1: \"sk\\nip\""},
      {"per_layer_config",
       {{"34", {{"head_dim", 512}}}},
       "layer 34 has other KV heads than layer 14"},
      {"layer_types", Json::array({"sliding"}), "layer_types"},
      {"tie_word_embeddings", false, "text_config: tie_word_embeddings: expected true"},
      {"model_type", "gemma3_text", "model_type: expected \"gemma4_text\""},
  };
  for (const auto& [key, value, message] : kCases) {
    const std::string error = ErrorWith(key, value);
    EXPECT_NE(error.find(message), std::string::npos) << key << " = " << value << ": " << error;
    EXPECT_EQ(error.rfind("config.json: ", 0), 0u) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(ConfigTest, LastLayerMustBeFull) {
  Json json = E2b();
  json["text_config"]["layer_types"].back() = "sliding_attention";
  EXPECT_NE(ErrorOf(json).find("full_attention in the last place"), std::string::npos);
}

TEST(ConfigTest, UnknownArchitecturesAreRefused) {
  EXPECT_NE(ErrorOf({{"architectures", {"Gemma3ForCausalLM"}}}).find("\"Gemma3ForCausalLM\""),
            std::string::npos);
  EXPECT_NE(ErrorOf(Json::object()).find("not a Gemma 4"), std::string::npos);
  EXPECT_NE(ErrorOf({{"architectures", {"Gemma4ForCausalLM"}}, {"model_type", "gemma4"}})
                .find("with model_type \"gemma4\""),
            std::string::npos);
  EXPECT_NE(ErrorOf(Json::array()).find("not a JSON object"), std::string::npos);
  EXPECT_NE(ErrorOf({{"model_type", "gemma4"}}).find("text_config is missing"), std::string::npos);
}

TEST(ConfigTest, MissingFileIsNamed) {
  const Result<Config> config = ReadConfig("/nonexistent");
  ASSERT_FALSE(config.has_value());
  EXPECT_NE(config.error().message.find("/nonexistent/config.json"), std::string::npos);
}

}  // namespace
}  // namespace nibble::gemma
