// Names and parts. Which tensors a model holds is compared with transformers in golden_test.cc.
#include "gemma/tensors.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble::gemma {
namespace {

TEST(TensorsTest, TextNameMapsBothSpellings) {
  EXPECT_EQ(TextName("model.language_model.layers.3.self_attn.q_proj.weight"),
            "model.layers.3.self_attn.q_proj.weight");
  EXPECT_EQ(TextName("model.language_model.embed_tokens.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(TextName("model.layers.3.layer_scalar"), "model.layers.3.layer_scalar");
  EXPECT_EQ(TextName("model.norm.weight"), "model.norm.weight");
  EXPECT_EQ(TextName("lm_head.weight"), "lm_head.weight");
}

TEST(TensorsTest, TextNameOfTowersAndStrangersIsNothing) {
  for (const char* name :
       {"model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight",
        "model.embed_audio.embedding_projection.weight", "model.rotary_emb.inv_freq",
        "model.layers.x.mlp.up_proj.weight", "model.layers.-1.layer_scalar",
        "model.layers.3.adapter.weight", "transformer.h.0.weight", "model", "model.",
        "model.layers.", ".", "", "model.language_model.vision_tower.x"}) {
    EXPECT_FALSE(TextName(name).has_value()) << name;
  }
}

TEST(TensorsTest, PartOfEveryKindOfName) {
  EXPECT_EQ(PartOf("model.layers.0.experts.gate_up_proj"), Part::kBody);
  EXPECT_EQ(PartOf("model.layers.0.mlp.up_proj.weight_packed"), Part::kBody);
  EXPECT_EQ(PartOf("model.language_model.norm.weight"), Part::kBody);
  EXPECT_EQ(PartOf("model.language_model.embed_tokens_per_layer.weight"), Part::kPle);
  EXPECT_EQ(PartOf("model.layers.0.per_layer_projection.weight"), Part::kPle);
  EXPECT_EQ(PartOf("model.embed_tokens.weight_scale"), Part::kVocabulary);
  EXPECT_EQ(PartOf("lm_head.weight_packed"), Part::kVocabulary);
  EXPECT_EQ(PartOf("model.audio_tower.norm_out.weight"), Part::kAudio);
  EXPECT_EQ(PartOf("model.vision_embedder.pos_embedding"), Part::kVision);
  EXPECT_EQ(PartOf("model.embed_vision.embedding_projection.weight"), Part::kVision);
  EXPECT_EQ(PartOf("optimizer.state"), std::nullopt);
}

TEST(TensorsTest, LeftoversAreTheKvOfSharedLayers) {
  Config config;
  config.layers.resize(3);
  config.layers[1].kv_owner_layer = 1;
  config.layers[2].kv_owner_layer = 1;
  EXPECT_TRUE(IsIgnoredLeftover(config, "model.layers.2.self_attn.k_proj.weight"));
  EXPECT_TRUE(IsIgnoredLeftover(config, "model.layers.2.self_attn.v_proj.weight"));
  EXPECT_TRUE(IsIgnoredLeftover(config, "model.layers.2.self_attn.k_norm.weight"));
  EXPECT_FALSE(IsIgnoredLeftover(config, "model.layers.1.self_attn.k_proj.weight"));
  EXPECT_FALSE(IsIgnoredLeftover(config, "model.layers.2.self_attn.q_proj.weight"));
  EXPECT_FALSE(IsIgnoredLeftover(config, "model.layers.2.mlp.k_proj.weight"));
  EXPECT_FALSE(IsIgnoredLeftover(config, "model.layers.3.self_attn.k_proj.weight"));
  EXPECT_FALSE(IsIgnoredLeftover(config, "model.layers.99999999999.self_attn.k_proj.weight"));
}

TEST(TensorsTest, ExpectedTensorsKnowTheirLayer) {
  Result<Config> config = ParseConfig(
      {{"model_type", "gemma4_text"}, {"num_hidden_layers", 2}, {"tie_word_embeddings", false}},
      "config.json");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  for (const TensorSpec& spec : ExpectedTensors(*config)) {
    const std::string prefix = fmt::format("model.layers.{}.", spec.layer_idx);
    EXPECT_EQ(spec.layer_idx >= 0, spec.name.starts_with("model.layers.")) << spec.name;
    EXPECT_TRUE(spec.layer_idx < 0 || spec.name.starts_with(prefix)) << spec.name;
  }
  EXPECT_EQ(ExpectedTensors(*config).back().name, "lm_head.weight");
  EXPECT_EQ(ExpectedTensors(*config).back().role, Role::kLmHead);
}

}  // namespace
}  // namespace nibble::gemma
