// Hand-counted bytes of a small model. The published sizes are checked in
// tests/interop/test_plan.py.
#include "gemma/footprint.h"

#include <gtest/gtest.h>

namespace nibble::gemma {
namespace {

// 6 layers, every third full, the last 3 without K and V of their own.
Json SmallModel() {
  return {{"architectures", {"Gemma4ForCausalLM"}},
          {"model_type", "gemma4_text"},
          {"vocab_size", 100},
          {"vocab_size_per_layer_input", 100},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 6},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", 32},
          {"global_head_dim", 64},
          {"hidden_size_per_layer_input", 32},
          {"num_kv_shared_layers", 3},
          {"sliding_window", 16},
          {"tie_word_embeddings", true},
          {"layer_types",
           {"sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
            "sliding_attention", "full_attention"}}};
}

Config ReadSmall(const Json& json) {
  Result<Config> config = ParseConfig(json, "config.json");
  EXPECT_TRUE(config.has_value()) << config.error().message;
  return config.has_value() ? *std::move(config) : Config();
}

TEST(KvFootprintTest, OwnersAloneCount) {
  const KvFootprint kv = KvOf(ReadSmall(SmallModel()), 2);
  EXPECT_EQ(kv.sliding_bytes_per_token, 2u * 2 * 32 * 2);  // 2 layers, K and V, 32 dims, 2 bytes
  EXPECT_EQ(kv.full_bytes_per_token, 1u * 2 * 64 * 2);
  EXPECT_EQ(kv.FullLengthBytes(1000), 512u * 1000);
  EXPECT_EQ(KvOf(ReadSmall(SmallModel()), 1).FullLengthBytes(1000), 256u * 1000);
}

TEST(KvFootprintTest, AWindowStopsGrowing) {
  const KvFootprint kv = KvOf(ReadSmall(SmallModel()), 2);
  EXPECT_EQ(kv.window_tokens, 16 + 512);
  EXPECT_EQ(kv.WindowedBytes(100), kv.FullLengthBytes(100));
  EXPECT_EQ(kv.WindowedBytes(528), kv.FullLengthBytes(528));
  EXPECT_EQ(kv.WindowedBytes(1000), 256u * 1000 + 256u * 528);
}

// Values of the small model by role.
constexpr uint64_t kTokenTable = 100 * 64;
constexpr uint64_t kPleTable = 100 * 6 * 32;
constexpr uint64_t kLinears = 6 * 32 * 64 +  // per_layer_model_projection
                              4 * (64 * 64 * 2) + 2 * (128 * 64 * 2) +  // q and o
                              2 * (32 * 64 * 2) + 1 * (64 * 64 * 2) +   // k and v of the owners
                              6 * (96 * 64 * 3) +
                              6 * (32 * 64 + 64 * 32);  // MLP, PLE gate and projection
constexpr uint64_t kPlain = 32 + 64 +                   // per_layer_projection_norm, norm
                            6 * (5 * 64 + 1) +          // norms of a layer, layer_scalar
                            4 * 32 + 2 * 64 +           // q_norm
                            2 * 32 + 64;                // k_norm

TEST(WeightBytesTest, EachFormat) {
  const Config config = ReadSmall(SmallModel());
  const auto bytes = [&](WeightFormat format) { return TextWeightBytes(config, format).n_bytes; };
  const auto int4 = [](uint64_t n_values) { return n_values * 18 / 32; };
  EXPECT_EQ(bytes(WeightFormat::kBF16), 2 * (kTokenTable + kPleTable + kLinears + kPlain));
  EXPECT_EQ(bytes(WeightFormat::kQ4W4A16), 2 * (kTokenTable + kPleTable + kPlain) + int4(kLinears));
  EXPECT_EQ(bytes(WeightFormat::kQ4W4A16Emb4),
            2 * kPlain + int4(2 * kTokenTable + kPleTable + kLinears));
  EXPECT_EQ(bytes(WeightFormat::kGguf), 4 * kPlain + int4(kTokenTable + kPleTable + kLinears));
  const uint64_t n_rows =
      6 * 32 + 4 * (64 + 64) + 2 * (128 + 64) + 2 * 64 + 128 + 6 * (96 + 96 + 64) + 6 * (32 + 64);
  EXPECT_EQ(bytes(WeightFormat::kW8A8),
            2 * (kTokenTable + kPleTable + kPlain) + kLinears + 4 * n_rows);
  EXPECT_EQ(bytes(WeightFormat::kW8A8Emb4),
            2 * kPlain + kLinears + 4 * n_rows + int4(2 * kTokenTable + kPleTable));
}

TEST(WeightBytesTest, AnUntiedHeadStandsOnce) {
  Json json = SmallModel();
  const uint64_t tied = TextWeightBytes(ReadSmall(json), WeightFormat::kQ4W4A16Emb4).n_bytes;
  json["tie_word_embeddings"] = false;
  EXPECT_EQ(TextWeightBytes(ReadSmall(json), WeightFormat::kQ4W4A16Emb4).n_bytes, tied);
  EXPECT_EQ(TextWeightBytes(ReadSmall(json), WeightFormat::kBF16).n_bytes,
            2 * (2 * kTokenTable + kPleTable + kLinears + kPlain));
}

TEST(WeightBytesTest, TablesThatAreOnlyLookedUpInStayInTheFile) {
  Json json = SmallModel();
  const auto lookup = [&](WeightFormat format) {
    return TextWeightBytes(ReadSmall(json), format).n_lookup_bytes;
  };
  EXPECT_EQ(lookup(WeightFormat::kQ4W4A16), 2 * kPleTable);
  EXPECT_EQ(lookup(WeightFormat::kGguf), kPleTable * 18 / 32);
  EXPECT_EQ(lookup(WeightFormat::kQ4W4A16Emb4), (kTokenTable + kPleTable) * 18 / 32);
  json["tie_word_embeddings"] = false;
  EXPECT_EQ(lookup(WeightFormat::kQ4W4A16), 2 * (kTokenTable + kPleTable));
}

TEST(StepBytesTest, GrowWithTheTokens) {
  const Config config = ReadSmall(SmallModel());
  const uint64_t one = StepBytes(config, 1);
  const uint64_t two = StepBytes(config, 2);
  EXPECT_EQ(StepBytes(config, 101) - one, 100 * (two - one));
  EXPECT_GT(two - one, 4u * 6 * 32);  // the per-layer inputs of a token
}

TEST(WeightBytesTest, AWidenedCodeTakesAByte) {
  const WeightBytes bytes = TextWeightBytes(ReadSmall(SmallModel()), WeightFormat::kQ4W4A16);
  EXPECT_EQ(bytes.n_int4_bytes, kLinears / 2);
  EXPECT_EQ(bytes.n_widened_bytes() - bytes.n_bytes, kLinears / 2);
  EXPECT_EQ(TextWeightBytes(ReadSmall(SmallModel()), WeightFormat::kW8A8).n_int4_bytes, 0u);
}

}  // namespace
}  // namespace nibble::gemma
