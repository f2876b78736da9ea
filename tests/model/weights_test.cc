// What a checkpoint must hold to be bound, and what its errors say.
#include "model/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/mapped_file.h"
#include "kernels/choose_kernels.h"
#include "random_model.h"

namespace nibble::model {
namespace {

std::vector<TestTensor>::iterator Find(std::vector<TestTensor>& tensors, const std::string& name) {
  return std::ranges::find_if(tensors, [&](const auto& t) { return t.info.name == name; });
}

// The error of binding, which must name all of `parts`.
void ExpectError(const std::vector<TestTensor>& tensors, const std::vector<std::string>& parts) {
  const auto weights = Bind(TestConfig(), tensors);
  ASSERT_FALSE(weights.has_value());
  for (const std::string& part : parts) {
    EXPECT_NE(weights.error().message.find(part), std::string::npos)
        << weights.error().message << "\nlacks " << part;
  }
}

constexpr char kUpProj[] = "model.layers.1.mlp.up_proj.weight";

TEST(BindWeights, TakesAWholeCheckpoint) {
  const auto weights = Bind(TestConfig(), RandomTensors(TestConfig()));
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  EXPECT_EQ(weights->layers.size(), 6u);
  EXPECT_EQ(weights->n_token_ids(), 96);
  EXPECT_EQ(weights->layers[4].k_proj.size_bytes(), 0);      // KV-shared
  EXPECT_EQ(weights->layers[4].up_proj.view().n_rows, 192);  // double-wide
}

TEST(BindWeights, CountsTheBytesOfAToken) {
  const gemma::Config config = TestConfig(R"({"num_kv_shared_layers": 0,
      "hidden_size_per_layer_input": 0, "num_hidden_layers": 1,
      "layer_types": ["full_attention"]})");
  const auto weights = Bind(config, RandomTensors(config));
  ASSERT_TRUE(weights.has_value()) << weights.error().message;
  // q, o: 4 heads of 64; k, v: 2; three MLP matrices of 96; the head: all of width 64, 2 bytes.
  EXPECT_EQ(weights->BytesPerToken(), (2 * 4 * 64 + 2 * 2 * 64 + 3 * 96 + 96) * 64 * 2);
}

TEST(BindWeights, NamesAMissingTensor) {
  std::vector<TestTensor> tensors = RandomTensors(TestConfig());
  tensors.erase(Find(tensors, kUpProj));
  ExpectError(tensors, {kUpProj, "missing", "[96, 64]"});
}

TEST(BindWeights, NamesAWrongShape) {
  std::vector<TestTensor> tensors = RandomTensors(TestConfig());
  Find(tensors, kUpProj)->info.shape = {64, 96};
  ExpectError(tensors, {kUpProj, "[96, 64]", "[64, 96]"});
}

TEST(BindWeights, NamesAWrongDType) {
  std::vector<TestTensor> tensors = RandomTensors(TestConfig());
  Find(tensors, kUpProj)->info.dtype = DType::kF16;
  ExpectError(tensors, {kUpProj, "BF16", "F16"});
}

TEST(BindWeights, NamesATensorOfAnotherArchitecture) {
  std::vector<TestTensor> tensors = RandomTensors(TestConfig());
  tensors.push_back(*Find(tensors, kUpProj));
  tensors.back().info.name = "model.layers.1.mlp.side_proj.weight";
  ExpectError(tensors, {"model.layers.1.mlp.side_proj.weight", "not a tensor"});
}

TEST(BindWeights, NamesMissingScales) {
  std::vector<TestTensor> tensors =
      RandomTensors(TestConfig(), 1, [](const gemma::TensorSpec&) { return true; });
  tensors.erase(Find(tensors, std::string(kUpProj) + "_scale"));
  ExpectError(tensors, {kUpProj, "_scale", "missing"});
}

TEST(BindWeights, NamesAStoredShapeThatDiffers) {
  std::vector<TestTensor> tensors =
      RandomTensors(TestConfig(), 1, [](const gemma::TensorSpec&) { return true; });
  *Find(tensors, std::string(kUpProj) + "_shape") =
      MakeTensor<int64_t>(std::string(kUpProj) + "_shape", DType::kI64, {2}, {96, 32});
  ExpectError(tensors, {kUpProj, "_shape", "[96, 64]", "[96, 32]"});
}

TEST(BindWeights, IgnoresTowersAndLeftOverKv) {
  std::vector<TestTensor> tensors = RandomTensors(TestConfig());
  for (const char* name : {"model.vision_tower.patch_embedder.input_proj.weight",
                           "model.layers.4.self_attn.k_proj.weight",
                           "model.layers.4.self_attn.v_proj.weight_packed", "lm_head.weight"}) {
    tensors.push_back(MakeTensor<uint16_t>(name, DType::kBF16, {2}, {1, 2}));
  }
  const auto weights = Bind(TestConfig(), tensors);
  EXPECT_TRUE(weights.has_value()) << weights.error().message;
}

// Of mapped files, on a disk or in memory.
int64_t ResidentFileKilobytes() {
  std::ifstream status("/proc/self/status");
  int64_t total = 0;
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == "RssFile:" || word == "RssShmem:") status >> kilobytes;
    total += kilobytes;
  }
  return total;
}

TEST(Table, KeepsNoRowsResident) {
  constexpr int64_t kRows = 32'768;
  constexpr int64_t kWidth = 1024;
  const std::filesystem::path path = testing::TempDir() + "nibble_table";
  std::ofstream(path).close();
  std::filesystem::resize_file(path, kRows * kWidth * 2);
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  std::filesystem::remove(path);
  const Table table = {.n_rows = kRows, .width = kWidth, .rows = file->bytes()};
  std::vector<float> row(kWidth);
  const int64_t before = ResidentFileKilobytes();
  for (int64_t i = 0; i < kRows; i += 16) {
    table.Gather(**kernels::ChooseKernels(nullptr), i, 1, row.data());
  }
  EXPECT_GE(ResidentFileKilobytes() - before, kRows / 16 * 4);  // one page each at least
  table.ReleaseRows();
  EXPECT_LT(ResidentFileKilobytes() - before, 1024);
}

}  // namespace
}  // namespace nibble::model
