// Per-layer inputs by hand.
#include "model/per_layer_input.h"

#include <gtest/gtest.h>

#include "random_model.h"

namespace nibble::model {
namespace {

// One token, two layers of width 256, table 1, projection 0: (0 + 1 * sqrt(256)) / sqrt(2), in
// float32.
TEST(PerLayerInputs, MatchAHandMadeCase) {
  const gemma::Config config = TestConfig(R"({"num_hidden_layers": 2, "num_kv_shared_layers": 0,
      "layer_types": ["sliding_attention", "full_attention"],
      "hidden_size_per_layer_input": 256})");
  std::vector<TestTensor> tensors = RandomTensors(config);
  for (TestTensor& tensor : tensors) {
    const bool is_table = tensor.info.name.find("embed_tokens_per_layer") != std::string::npos;
    const bool is_projection = tensor.info.name.find("model_projection") != std::string::npos;
    if (!is_table && !is_projection) continue;
    const std::vector<uint16_t> bits(tensor.bytes.size() / 2, FloatToBf16(is_table ? 1.0f : 0.0f));
    std::memcpy(tensor.bytes.data(), bits.data(), tensor.bytes.size());
  }
  const auto weights = Bind(config, tensors);
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  ThreadPool pool(1);
  const Ops ops{.kernels = **kernels::ChooseKernels(nullptr), .pool = pool};
  const std::vector<float> embedded(64, 3.0f);
  const int32_t token = 5;
  std::vector<float> inputs;
  ComputePerLayerInputs(ops, *weights, {&token, 1}, embedded.data(), inputs);
  EXPECT_EQ(inputs, std::vector<float>(2 * 256, 16.0f * 0.70710678f));
}

TEST(EmbeddingScale, IsRoundedToBf16) {
  EXPECT_EQ(EmbeddingScale(256), 16.0f);
  EXPECT_EQ(EmbeddingScale(1536), 39.25f);  // sqrt = 39.19; bf16 has steps of 0.25 there
  EXPECT_EQ(EmbeddingScale(3072), 55.5f);   // sqrt = 55.43, the reference's own example
}

}  // namespace
}  // namespace nibble::model
