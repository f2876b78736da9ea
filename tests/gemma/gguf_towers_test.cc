#include "gemma/gguf_towers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "checkpoint/checkpoint.h"

namespace nibble::gemma {
namespace {

using checkpoint::GgmlType;
using checkpoint::TensorInfo;

class GgufTowersTest : public testing::Test {
 protected:
  std::string Fault() const {
    const auto specs = ExpectedTowers(config_);
    EXPECT_EQ(specs.has_value(), GgufTowerConfig(config_).has_value());
    return specs.has_value() ? "" : specs.error().message;
  }

  const std::filesystem::path source_ = std::filesystem::path(NIBBLE_SOURCE_DIR) / "models/tiny";
  Config config_ = ReadConfig(source_).value();
};

TensorInfo Info(DType dtype, std::vector<int64_t> shape) {
  TensorInfo info{.name = "x", .dtype = dtype, .shape = std::move(shape)};
  info.size_bytes = static_cast<uint64_t>(SizeBytes(dtype));
  for (const int64_t extent : info.shape) info.size_bytes *= static_cast<uint64_t>(extent);
  return info;
}

TEST_F(GgufTowersTest, ExpectsEveryTensorOfTheTowersOnce) {
  const auto checkpoint = checkpoint::Checkpoint::Open(source_).value();
  std::set<std::string> left;
  for (const checkpoint::Tensor& tensor : checkpoint.tensors()) {
    if (!TextName(tensor.info.name)) left.insert(tensor.info.name);
  }
  std::set<std::string> names;
  const auto specs = ExpectedTowers(config_).value();
  for (const TowerSpec& spec : specs) {
    EXPECT_EQ(left.erase(spec.source), 1u) << spec.source;
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    EXPECT_EQ(GgufTowerPart(spec.name), PartOf(spec.source)) << spec.name;
  }
  EXPECT_TRUE(left.empty()) << *left.begin();
}

TEST_F(GgufTowersTest, AShapeThatDoesNotAllowTheChangeIsRefused) {
  const auto changed = [](TowerChange change, std::vector<int64_t> shape) {
    return GgufTowerTensor({.source = "x", .name = "y", .change = change},
                           Info(DType::kBF16, std::move(shape)));
  };
  EXPECT_EQ(changed(TowerChange::kPatchKernel, {5, 12})->dims, (std::vector<int64_t>{2, 2, 3, 5}));
  EXPECT_FALSE(changed(TowerChange::kPatchKernel, {5, 15}).has_value());
  EXPECT_EQ(changed(TowerChange::kAxesFirst, {7, 2, 5})->dims, (std::vector<int64_t>{5, 7, 2}));
  EXPECT_FALSE(changed(TowerChange::kAxesFirst, {2, 7, 5}).has_value());
  EXPECT_EQ(changed(TowerChange::kDropMiddle, {8, 1, 5})->dims, (std::vector<int64_t>{5, 8}));
  EXPECT_FALSE(changed(TowerChange::kDropMiddle, {8, 2, 5}).has_value());
  EXPECT_FALSE(changed(TowerChange::kChannelsFirst, {8}).has_value());
  EXPECT_FALSE(changed(TowerChange::kSoftplus, {8, 8}).has_value());
}

TEST_F(GgufTowersTest, TypesAreTheSourcesUnlessFloat32IsDemanded) {
  const TowerSpec matrix{.source = "x", .name = "y"};
  const TowerSpec table{.source = "x", .name = "y", .is_f32 = true};
  for (const auto& [dtype, type] : std::map<DType, GgmlType>{{DType::kBF16, GgmlType::kBF16},
                                                             {DType::kF16, GgmlType::kF16},
                                                             {DType::kF32, GgmlType::kF32}}) {
    EXPECT_EQ(GgufTowerTensor(matrix, Info(dtype, {4, 8}))->type, type);
    EXPECT_EQ(GgufTowerTensor(table, Info(dtype, {4, 8}))->type, GgmlType::kF32);
    EXPECT_EQ(GgufTowerTensor(matrix, Info(dtype, {8}))->type, GgmlType::kF32);
    EXPECT_EQ(GgufTowerTensor(matrix, Info(dtype, {}))->dims, std::vector<int64_t>{1});
  }
  EXPECT_FALSE(GgufTowerTensor(matrix, Info(DType::kI32, {4, 8})).has_value());
}

TEST_F(GgufTowersTest, WhatLlamaCppHasFixedIsChecked) {
  EXPECT_EQ(Fault(), "");
  config_.json["audio_config"]["conv_kernel_size"] = 7;
  EXPECT_NE(Fault().find("audio_config.conv_kernel_size"), std::string::npos) << Fault();
  config_.json["audio_config"] = nullptr;
  EXPECT_EQ(Fault(), "");
  config_.json["vision_config"]["num_key_value_heads"] = 1;
  EXPECT_NE(Fault().find("2 heads of 16 and 1 KV heads"), std::string::npos) << Fault();
  config_.json["vision_config"]["num_key_value_heads"] = "two";
  EXPECT_NE(Fault().find("expected an integer, found \"\\\"two\\\"\""), std::string::npos)
      << Fault();
  config_.json["vision_config"] = nullptr;
  EXPECT_NE(Fault().find("no vision_config"), std::string::npos) << Fault();
}

TEST_F(GgufTowersTest, TheFileIsNamedAfterTheModelWithoutItsType) {
  EXPECT_EQ(GgufTowersPath("a/gemma-4-E2B-it-Q4_0.gguf"), "a/mmproj-gemma-4-E2B-it-BF16.gguf");
  EXPECT_EQ(GgufTowersPath("gemma.q4_0.gguf"), "mmproj-gemma-BF16.gguf");
  EXPECT_EQ(GgufTowersPath("/x/tiny.gguf"), "/x/mmproj-tiny-BF16.gguf");
}

}  // namespace
}  // namespace nibble::gemma
