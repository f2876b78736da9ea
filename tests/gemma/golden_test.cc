// nibble's view of each kind of Gemma 4 against what transformers builds from the same config.json
// (tests/gemma/golden/, written by make_golden.py).
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gemma/config.h"
#include "gemma/tensors.h"

namespace nibble::gemma {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path =
        fmt::format("{}/tests/gemma/golden/{}.json", NIBBLE_SOURCE_DIR, GetParam());
    Result<Json> golden = ReadJsonFile(path);
    ASSERT_TRUE(golden.has_value()) << golden.error().message;
    golden_ = std::move(*golden);
  }

  Config Parse(const Json& json) {
    Result<Config> config = ParseConfig(json, GetParam());
    EXPECT_TRUE(config.has_value()) << config.error().message;
    return config.has_value() ? *std::move(config) : Config();
  }

  // The object that holds the text model's keys.
  static Json& Text(Json& config) {
    return config.contains("text_config") ? config["text_config"] : config;
  }

  Json golden_;
};

TEST_P(GoldenTest, ExpectedTensorsAreThoseOfTransformers) {
  Shapes expected;
  for (const TensorSpec& spec : ExpectedTensors(Parse(golden_["config"]))) {
    EXPECT_TRUE(expected.emplace(spec.name, spec.shape).second) << spec.name << " twice";
  }
  Shapes found;
  for (const auto& [name, shape] : golden_["shapes"].items()) {
    EXPECT_TRUE(PartOf(name).has_value()) << name;
    if (const std::optional<std::string> text_name = TextName(name)) {
      found.emplace(*text_name, shape.get<std::vector<int64_t>>());
    }
  }
  EXPECT_EQ(expected, found);
}

TEST_P(GoldenTest, AllThatIsLargeIsQuantisedButTheRouter) {
  for (const TensorSpec& spec : ExpectedTensors(Parse(golden_["config"]))) {
    const bool is_router = spec.name.find(".router.") != std::string::npos;
    EXPECT_EQ(spec.role == Role::kPlain, is_router || spec.shape.size() == 1) << spec.name;
    EXPECT_EQ(spec.role == Role::kExpertBank, spec.shape.size() == 3) << spec.name;
  }
}

TEST_P(GoldenTest, RopeFrequenciesAreThoseOfTransformers) {
  for (const LayerConfig& layer : Parse(golden_["config"]).layers) {
    const Json& inv_freq =
        golden_["inv_freq"][layer.is_sliding ? "sliding_attention" : "full_attention"];
    ASSERT_EQ(std::ssize(inv_freq), layer.head_dim / 2);
    for (int j = 0; j < layer.head_dim / 2; ++j) {
      const double expected =
          j < layer.n_rotating_pairs ? std::pow(layer.rope_theta, -2.0 * j / layer.head_dim) : 0.0;
      // torch.pow in float32: a few units of 2^-24, times the exponent's size (ln theta < 14).
      EXPECT_NEAR(inv_freq[j].get<double>(), expected, expected * 0x1p-20) << "pair " << j;
    }
  }
}

TEST_P(GoldenTest, KvSharingIsThatOfTransformers) {
  const Config config = Parse(golden_["config"]);
  const Json& modes = golden_["kv_sharing_modes"];
  ASSERT_EQ(std::ssize(modes), config.n_layers());
  for (int i = 0; i < config.n_layers(); ++i) {
    EXPECT_EQ(config.OwnsKv(i), modes[i] != "reuse") << "layer " << i;
    const LayerConfig& owner = config.layers[config.layers[i].kv_owner_layer];
    EXPECT_EQ(owner.is_sliding, config.layers[i].is_sliding) << "layer " << i;
    if (!config.OwnsKv(i)) {
      EXPECT_EQ(modes[config.layers[i].kv_owner_layer], "store") << "layer " << i;
    }
  }
}

// The older spelling: global_head_dim and num_global_key_value_heads instead of per_layer_config.
TEST_P(GoldenTest, BothSpellingsOfTheFullLayersMeanTheSame) {
  Json older = golden_["config"];
  Json& text = Text(older);
  const Json full_layer = text["per_layer_config"].front();
  text.erase("per_layer_config");
  text["global_head_dim"] = full_layer["head_dim"];
  text["num_global_key_value_heads"] = full_layer.value("num_key_value_heads", Json());
  const Config a = Parse(golden_["config"]);
  const Config b = Parse(older);
  ASSERT_EQ(a.n_layers(), b.n_layers());
  for (int i = 0; i < a.n_layers(); ++i) {
    EXPECT_EQ(a.layers[i].head_dim, b.layers[i].head_dim) << "layer " << i;
    EXPECT_EQ(a.layers[i].n_kv_heads, b.layers[i].n_kv_heads) << "layer " << i;
    EXPECT_EQ(a.layers[i].n_rotating_pairs, b.layers[i].n_rotating_pairs) << "layer " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GoldenTest,
                         testing::Values("multimodal_e_type", "unified", "text_e_type",
                                         "text_k_eq_v", "text_moe_untied"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace nibble::gemma
