// Names and configs as GGUF files spell them, there and back.
#include "gemma/gguf.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "gemma/tensors.h"

namespace nibble::gemma {
namespace {

namespace fs = std::filesystem;
using checkpoint::GgmlType;
using checkpoint::GgufEntry;
using checkpoint::GgufTensor;

Config Golden(const char* kind) {
  Result<Json> golden =
      ReadJsonFile(fmt::format("{}/tests/gemma/golden/{}.json", NIBBLE_SOURCE_DIR, kind));
  Result<Config> config = ParseConfig(golden.value()["config"], kind);
  config->ple_vocab_size = config->ple_width > 0 ? config->vocab_size : 0;  // as llama.cpp wants
  return std::move(config).value();
}

// A file with this metadata and all tensors of the config, of bytes that stand for nothing but in
// the rope factors.
Result<checkpoint::GgufFile> WriteAndOpen(const Config& config,
                                          const std::vector<GgufEntry>& metadata) {
  const fs::path path = fs::path(testing::TempDir()) / "nibble_gemma_gguf_test.gguf";
  const std::vector<float> factors = GgufRopeFactors(config);
  std::vector<GgufTensor> tensors = {
      {.name = std::string(kGgufRopeFactors), .dims = {std::ssize(factors)}}};
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    tensors.push_back({.name = GgufName(spec.name).value(),
                       .type = GgmlType::kI8,
                       .dims = {spec.shape.rbegin(), spec.shape.rend()}});
  }
  auto writer = checkpoint::GgufWriter::Create(path, metadata, tensors);
  if (!writer.has_value()) return std::unexpected(writer.error());
  NIBBLE_RETURN_IF_ERROR(writer->Append(std::as_bytes(std::span(factors))));
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    size_t n = 1;
    for (const int64_t extent : spec.shape) n *= static_cast<size_t>(extent);
    NIBBLE_RETURN_IF_ERROR(writer->Append(std::vector<std::byte>(n)));
  }
  NIBBLE_RETURN_IF_ERROR(writer->Commit());
  auto file = checkpoint::GgufFile::Open(path);
  fs::remove(path);  // the mapping stays
  return file;
}

class GgufConfigTest : public testing::TestWithParam<const char*> {};

TEST_P(GgufConfigTest, NamesGoThereAndBack) {
  std::set<std::string> names;
  for (const TensorSpec& spec : ExpectedTensors(Golden(GetParam()))) {
    const auto name = GgufName(spec.name);
    ASSERT_TRUE(name.has_value()) << spec.name;
    EXPECT_TRUE(names.insert(*name).second) << *name << " twice";
    EXPECT_EQ(CanonicalName(*name), spec.name);
  }
}

TEST_P(GgufConfigTest, AFileHoldsTheWholeConfig) {
  const Config config = Golden(GetParam());
  const auto metadata = GgufConfig(config);
  ASSERT_TRUE(metadata.has_value()) << metadata.error().message;
  const auto file = WriteAndOpen(config, *metadata);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const auto read = ConfigFromGguf(*file);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(read->hidden_size, config.hidden_size);
  EXPECT_EQ(read->n_heads, config.n_heads);
  EXPECT_EQ(read->vocab_size, config.vocab_size);
  EXPECT_EQ(read->sliding_window, config.sliding_window);
  EXPECT_EQ(read->ple_width, config.ple_width);
  EXPECT_EQ(read->ple_vocab_size, config.ple_vocab_size);
  EXPECT_EQ(read->max_position_embeddings, config.max_position_embeddings);
  EXPECT_EQ(read->rms_norm_eps, config.rms_norm_eps);
  EXPECT_EQ(read->final_logit_softcapping, config.final_logit_softcapping);
  EXPECT_EQ(read->tie_word_embeddings, config.tie_word_embeddings);
  EXPECT_EQ(read->n_experts, config.n_experts);
  EXPECT_EQ(read->top_k_experts, config.top_k_experts);
  EXPECT_EQ(read->moe_width, config.moe_width);
  ASSERT_EQ(read->n_layers(), config.n_layers());
  for (int i = 0; i < config.n_layers(); ++i) {
    const LayerConfig& found = read->layers[i];
    const LayerConfig& expected = config.layers[i];
    EXPECT_EQ(found.is_sliding, expected.is_sliding) << i;
    EXPECT_EQ(found.head_dim, expected.head_dim) << i;
    EXPECT_EQ(found.n_kv_heads, expected.n_kv_heads) << i;
    EXPECT_EQ(found.kv_owner_layer, expected.kv_owner_layer) << i;
    EXPECT_EQ(found.k_eq_v, expected.k_eq_v) << i;
    EXPECT_EQ(found.mlp_width, expected.mlp_width) << i;
    EXPECT_EQ(found.rope_theta, expected.rope_theta) << i;
    EXPECT_EQ(found.n_rotating_pairs, expected.n_rotating_pairs) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GgufConfigTest,
                         testing::Values("text_e_type", "text_k_eq_v", "text_moe_untied"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(GgufConfig, AnotherArchitectureOrAMissingKeyIsNamed) {
  const Config config = Golden("text_e_type");
  std::vector<GgufEntry> metadata = GgufConfig(config).value();
  std::erase_if(metadata, [](const GgufEntry& e) { return e.key == "gemma4.block_count"; });
  const auto without = ConfigFromGguf(WriteAndOpen(config, metadata).value());
  ASSERT_FALSE(without.has_value());
  EXPECT_NE(without.error().message.find("gemma4.block_count"), std::string::npos);
  metadata[0].value = std::string("gemma3");
  const auto other = ConfigFromGguf(WriteAndOpen(config, metadata).value());
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().message.find("expected gemma4, found \"gemma3\""), std::string::npos);
}

TEST(GgufConfig, WhatLlamaCppCannotComputeIsRefused) {
  Config config = Golden("text_e_type");
  const int shared = config.first_shared_layer();
  config.layers[shared].kv_owner_layer = 0;
  const auto refused = GgufConfig(config);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find(fmt::format("layer {}", shared)), std::string::npos);
  config = Golden("text_e_type");
  config.ple_vocab_size /= 2;
  EXPECT_FALSE(GgufConfig(config).has_value());
}

TEST(GgufNames, OthersHaveNone) {
  for (const char* name : {"blk.attn_q.weight", "blk.1.attn_qkv.weight", "blk.1",
                           "blk..proj.weight", "rope_freqs.weight", ""}) {
    EXPECT_EQ(CanonicalName(name), std::nullopt) << name;
  }
  EXPECT_EQ(GgufName("model.vision_tower.x.weight"), std::nullopt);
}

}  // namespace
}  // namespace nibble::gemma
