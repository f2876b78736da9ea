// A random model bound from a GGUF file: the same logits as from safetensors where the values are
// the same, and errors that name what is wrong.
#include "model/weights_gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "formats/q4_0.h"
#include "formats/q6_k.h"
#include "gemma/gguf.h"
#include "model/forward.h"
#include "random_model.h"

namespace nibble::model {
namespace {

namespace fs = std::filesystem;
using checkpoint::GgmlType;
using checkpoint::GgufTensor;

// Q6_K wants rows of 256 values.
gemma::Config WideConfig() {
  return TestConfig(
      R"({"hidden_size": 256, "num_hidden_layers": 4, "hidden_size_per_layer_input": 64,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]})");
}

std::vector<float> Floats(const TestTensor& tensor) {
  std::vector<float> values;
  for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
    uint16_t bits = 0;
    std::memcpy(&bits, &tensor.bytes[i], sizeof bits);
    values.push_back(Bf16ToFloat(bits));
  }
  return values;
}

// Values of RandomTensors are code * +-2^e with e known from the row's length.
std::vector<std::byte> AsQ40(std::span<const float> values, int64_t n_columns) {
  const int exponent =
      -2 - static_cast<int>(std::lround(std::log2(static_cast<double>(n_columns)) / 2));
  std::vector<std::byte> blocks(values.size() / 32 * 18);
  for (size_t i = 0; i < values.size() / 32; ++i) {
    const auto group = values.subspan(i * 32, 32);
    const float largest = std::ranges::max(group) * std::ldexp(1.0f, -exponent);
    const float scale = std::ldexp(largest > 7 ? -1.0f : 1.0f, exponent);
    std::array<int8_t, 32> codes;
    for (size_t k = 0; k < 32; ++k) codes[k] = static_cast<int8_t>(group[k] / scale);
    formats::PackQ40Block(codes, FloatToFp16(scale), std::span(blocks).subspan(i * 18).first<18>());
  }
  return blocks;
}

std::vector<std::byte> AsQ6K(std::span<const float> values) {
  std::vector<std::byte> blocks(values.size() / 256 * 210);
  for (size_t i = 0; i < values.size() / 256; ++i) {
    CHECK(formats::QuantizeQ6KBlock(values.subspan(i * 256).first<256>(),
                                    std::span(blocks).subspan(i * 210).first<210>()));
  }
  return blocks;
}

template <typename T>
std::vector<std::byte> AsArray(std::span<const float> values, T (*convert)(float)) {
  std::vector<T> converted;
  for (const float value : values) converted.push_back(convert(value));
  const auto bytes = std::as_bytes(std::span(converted));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> Encode(GgmlType type, std::span<const float> values, int64_t n_columns) {
  switch (type) {
    case GgmlType::kQ40:
      return AsQ40(values, n_columns);
    case GgmlType::kQ6K:
      return AsQ6K(values);
    case GgmlType::kBF16:
      return AsArray<uint16_t>(values, [](float v) { return FloatToBf16(v); });
    case GgmlType::kF16:
      return AsArray<uint16_t>(values, [](float v) { return FloatToFp16(v); });
    case GgmlType::kF32:
      return AsArray<float>(values, [](float v) { return v; });
    case GgmlType::kF64:
      return AsArray<double>(values, [](float v) { return static_cast<double>(v); });
    default:
      CHECK(false);
  }
}

using Types = std::map<std::string, GgmlType>;  // by canonical name; others Q4_0, and F32 if plain

Result<Weights> BindAs(const gemma::Config& config, const std::vector<TestTensor>& tensors,
                       const Types& types, const std::string& left_out = "") {
  std::vector<checkpoint::GgufEntry> metadata = gemma::GgufConfig(config).value();
  std::vector<GgufTensor> infos;
  std::vector<std::vector<std::byte>> contents;
  for (const TestTensor& tensor : tensors) {
    const std::string& name = tensor.info.name;
    if (name == left_out) continue;
    const std::vector<int64_t>& shape = tensor.info.shape;
    const bool is_plain = shape.size() == 1 || name.find("router.proj") != std::string::npos;
    const auto chosen = types.find(name);
    const GgmlType type =
        chosen != types.end() ? chosen->second : (is_plain ? GgmlType::kF32 : GgmlType::kQ40);
    infos.push_back({.name = gemma::GgufName(name).value(),
                     .type = type,
                     .dims = {shape.rbegin(), shape.rend()}});
    contents.push_back(Encode(type, Floats(tensor), shape.back()));
  }
  const std::vector<float> factors = gemma::GgufRopeFactors(config);
  infos.push_back({.name = std::string(gemma::kGgufRopeFactors), .dims = {std::ssize(factors)}});
  const auto bytes = std::as_bytes(std::span(factors));
  contents.emplace_back(bytes.begin(), bytes.end());
  const fs::path path = fs::path(testing::TempDir()) / "nibble_weights_gguf_test.gguf";
  auto writer = checkpoint::GgufWriter::Create(path, metadata, infos);
  CHECK(writer.has_value());
  for (const auto& content : contents) CHECK(writer->Append(content).has_value());
  CHECK(writer->Commit().has_value());
  ThreadPool pool(2);
  auto weights = LoadWeights(path, pool);
  fs::remove(path);  // the mapping stays
  return weights;
}

std::vector<float> Logits(const Weights& weights) {
  ThreadPool pool(1);
  KvCache cache(weights.config, {.format = kernels::KvFormat::kF32});
  Forward forward(weights, cache, {.kernels = **kernels::ChooseKernels(nullptr), .pool = pool});
  KvSequence sequence(cache);
  const std::vector<int32_t> prompt = RandomPrompt(weights.config, 40);
  const StepSequence step{.tokens = prompt, .kv = &sequence, .n_logits = 3};
  const std::span<const float> logits = forward.Step({&step, 1});
  return {logits.begin(), logits.end()};
}

class WeightsGgufTest : public testing::TestWithParam<const char*> {};

// Scales are powers of two here, so that it does not matter where one is multiplied.
TEST_P(WeightsGgufTest, TheSameValuesGiveTheSameLogits) {
  const gemma::Config config = TestConfig(GetParam());
  const std::vector<TestTensor> tensors = RandomTensors(config);
  const std::vector<float> expected = Logits(Bind(config, tensors).value());
  const Types plain = {{"model.embed_tokens.weight", GgmlType::kBF16},
                       {"model.embed_tokens_per_layer.weight", GgmlType::kF16},
                       {"model.layers.0.mlp.up_proj.weight", GgmlType::kF32},
                       {"model.layers.1.input_layernorm.weight", GgmlType::kBF16}};
  for (const Types& types : {Types(), plain}) {
    const auto weights = BindAs(config, tensors, types);
    ASSERT_TRUE(weights.has_value()) << weights.error().message;
    EXPECT_EQ(Logits(*weights), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, WeightsGgufTest,
    testing::Values("{}",
                    R"({"attention_k_eq_v": true, "num_kv_shared_layers": 0,
                        "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0})",
                    R"({"enable_moe_block": true, "num_experts": 4, "top_k_experts": 2,
                        "moe_intermediate_size": 32, "num_kv_shared_layers": 0,
                        "hidden_size_per_layer_input": 0})",
                    R"({"tie_word_embeddings": false})"));

// Google's files keep the tables in Q6_K, others in Q4_0.
TEST(WeightsGguf, TablesInQ6KRunAndAreAsNearAsSixBitsAllow) {
  const gemma::Config config = WideConfig();
  const std::vector<TestTensor> tensors = RandomTensors(config);
  const std::vector<float> expected = Logits(BindAs(config, tensors, {}).value());
  const auto weights = BindAs(config, tensors,
                              {{"model.embed_tokens.weight", GgmlType::kQ6K},
                               {"model.embed_tokens_per_layer.weight", GgmlType::kQ6K}});
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  EXPECT_EQ(weights->lm_head.view().format, kernels::WeightFormat::kInt8);
  const std::vector<float> logits = Logits(*weights);
  double squares = 0;
  double errors = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    squares += expected[i] * expected[i];
    errors += (logits[i] - expected[i]) * (logits[i] - expected[i]);
  }
  EXPECT_LT(errors, 0.02 * squares);
}

TEST(WeightsGguf, ATypeThatItCannotReadIsNamedWithItsTensor) {
  const gemma::Config config = TestConfig();
  const auto weights =
      BindAs(config, RandomTensors(config), {{"model.embed_tokens.weight", GgmlType::kF64}});
  ASSERT_FALSE(weights.has_value());
  EXPECT_NE(weights.error().message.find("token_embd.weight: expected Q4_0 or Q6_K or BF16 or F16 "
                                         "or F32 [64, 96], found F64 [64, 96]"),
            std::string::npos)
      << weights.error().message;
}

TEST(WeightsGguf, AMissingTensorIsNamed) {
  const gemma::Config config = TestConfig();
  const auto weights =
      BindAs(config, RandomTensors(config), {}, "model.layers.1.mlp.up_proj.weight");
  ASSERT_FALSE(weights.has_value());
  EXPECT_NE(weights.error().message.find("blk.1.ffn_up.weight: missing"), std::string::npos)
      << weights.error().message;
}

}  // namespace
}  // namespace nibble::model
