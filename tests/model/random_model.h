// A random tiny checkpoint, written to a temporary directory and bound, for tests of model/ and
// engine/. Every matrix value is a 4-bit code times a power of two, so the plain (bf16) and the
// packed form of one seed hold the same numbers exactly.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/float16.h"
#include "checkpoint/safetensors.h"
#include "gemma/config.h"
#include "gemma/tensors.h"
#include "kernels/choose_kernels.h"
#include "model/weights.h"

namespace nibble::model {

struct TestTensor {
  checkpoint::TensorInfo info;
  std::vector<std::byte> bytes;
};

inline gemma::Config TestConfig(const char* overrides = "{}") {
  Json json = Json::parse(R"({
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text",
    "vocab_size": 96, "vocab_size_per_layer_input": 96, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "global_head_dim": 64, "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 2,
    "use_double_wide_mlp": true, "sliding_window": 24, "max_position_embeddings": 512,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention",
                    "sliding_attention", "full_attention"],
    "final_logit_softcapping": 30.0})");
  json.update(Json::parse(overrides));
  auto config = gemma::ParseConfig(json, "test");
  CHECK(config.has_value());
  return *std::move(config);
}

template <typename T>
TestTensor MakeTensor(std::string name, DType dtype, std::vector<int64_t> shape,
                      const std::vector<T>& values) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  return {.info = {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)},
          .bytes = {bytes.begin(), bytes.end()}};
}

// X.weight of [N, K] as packed codes, fp16 scales and shape.
inline void AppendPacked(const std::string& name, const std::vector<int64_t>& shape,
                         const std::vector<int>& codes, const std::vector<float>& scales,
                         std::vector<TestTensor>& tensors) {
  std::vector<uint32_t> words(codes.size() / 8);
  for (size_t i = 0; i < codes.size(); ++i) {
    words[i / 8] |= static_cast<uint32_t>(codes[i] + 8) << (4 * (i % 8));
  }
  std::vector<uint16_t> halves;
  for (const float scale : scales) halves.push_back(FloatToFp16(scale));
  tensors.push_back(MakeTensor(name + "_packed", DType::kI32, {shape[0], shape[1] / 8}, words));
  tensors.push_back(MakeTensor(name + "_scale", DType::kF16, {shape[0], shape[1] / 32}, halves));
  tensors.push_back(MakeTensor(name + "_shape", DType::kI64, {2}, shape));
}

// is_packed(spec): whether to store this matrix packed.
template <typename IsPacked>
std::vector<TestTensor> RandomTensors(const gemma::Config& config, int seed, IsPacked is_packed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> near_one(0.5f, 1.5f);
  std::vector<TestTensor> tensors;
  for (const gemma::TensorSpec& spec : gemma::ExpectedTensors(config)) {
    int64_t n = 1;
    for (const int64_t extent : spec.shape) n *= extent;
    std::vector<uint16_t> bits;
    if (spec.shape.size() < 2) {
      const bool is_head_norm =
          spec.name.ends_with("q_norm.weight") || spec.name.ends_with("k_norm.weight");
      const float size = is_head_norm ? 0.4f : 1.0f;  // the attention scale is 1
      for (int64_t i = 0; i < n; ++i) bits.push_back(FloatToBf16(near_one(random) * size));
      tensors.push_back(MakeTensor(spec.name, DType::kBF16, spec.shape, bits));
      continue;
    }
    // Codes have a standard deviation of 4.6: values of about K^-0.5.
    const int exponent =
        -2 - static_cast<int>(std::lround(std::log2(static_cast<double>(spec.shape.back())) / 2));
    std::vector<int> codes;
    std::vector<float> scales;
    for (int64_t i = 0; i < n; ++i) {
      if (i % 32 == 0) scales.push_back(std::ldexp(random() % 2 == 0 ? 1.0f : -1.0f, exponent));
      codes.push_back(static_cast<int>(random() % 16) - 8);
      bits.push_back(FloatToBf16(static_cast<float>(codes.back()) * scales.back()));
    }
    if (spec.shape.size() == 2 && is_packed(spec)) {
      AppendPacked(spec.name, spec.shape, codes, scales, tensors);
    } else {
      tensors.push_back(MakeTensor(spec.name, DType::kBF16, spec.shape, bits));
    }
  }
  return tensors;
}

inline std::vector<TestTensor> RandomTensors(const gemma::Config& config, int seed = 1) {
  return RandomTensors(config, seed, [](const gemma::TensorSpec&) { return false; });
}

// Writes the tensors to a file of their own, opens and binds it.
inline Result<Weights> Bind(const gemma::Config& config, const std::vector<TestTensor>& tensors) {
  std::string dir = testing::TempDir() + "nibble_model_XXXXXX";
  CHECK(mkdtemp(dir.data()) != nullptr);
  const std::filesystem::path path = std::filesystem::path(dir) / "model.safetensors";
  std::vector<checkpoint::TensorInfo> infos;
  for (const TestTensor& tensor : tensors) infos.push_back(tensor.info);
  auto writer = checkpoint::SafetensorsWriter::Create(path, infos, {});
  CHECK(writer.has_value());
  for (const TestTensor& tensor : tensors) CHECK(writer->Append(tensor.bytes).has_value());
  CHECK(writer->Commit().has_value());
  auto checkpoint = checkpoint::Checkpoint::Open(path);
  CHECK(checkpoint.has_value());
  std::filesystem::remove_all(dir);  // the mapping stays
  ThreadPool pool(1);
  kernels::TileStore store(pool);
  return BindWeights(config, *std::move(checkpoint), store);
}

inline std::vector<int32_t> RandomPrompt(const gemma::Config& config, int n, int seed = 1) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) {
    ids.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(config.vocab_size)));
  }
  return ids;
}

}  // namespace nibble::model
