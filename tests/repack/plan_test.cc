#include "repack/plan.h"

#include <gtest/gtest.h>

namespace nibble::repack {
namespace {

checkpoint::Tensor Matrix(int64_t n, int64_t k) {
  checkpoint::Tensor tensor;
  tensor.info.shape = {n, k};
  tensor.info.size_bytes = static_cast<uint64_t>(2 * n * k);
  return tensor;
}

TEST(Plan, APackedModuleIsThreeTensorsOfItsRows) {
  const checkpoint::Tensor source = Matrix(10, 64);
  const PlannedTensor planned{
      .source = &source, .action = Action::kPack, .output = "model.x", .row_begin = 4, .n_rows = 6};
  EXPECT_EQ(planned.source_bytes(), 6u * 64 * 2);
  const auto tensors = planned.OutputTensors(DType::kF16);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "model.x.weight_packed");
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{6, 8}));
  EXPECT_EQ(tensors[0].size_bytes, 6u * 64 / 2);
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{6, 2}));
  EXPECT_EQ(tensors[1].dtype, DType::kF16);
  EXPECT_EQ(tensors[2].size_bytes, 16u);
}

TEST(Plan, AnInt8ModuleIsItsCodesAndOneScaleARow) {
  const checkpoint::Tensor source = Matrix(10, 48);  // no multiple of 32
  const PlannedTensor planned{.source = &source,
                              .action = Action::kPack,
                              .output = "model.x",
                              .encoding = Encoding::kInt8Channel,
                              .row_begin = 4,
                              .n_rows = 6};
  const auto tensors = planned.OutputTensors(DType::kF16);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "model.x.weight");
  EXPECT_EQ(tensors[0].dtype, DType::kI8);
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{6, 48}));
  EXPECT_EQ(tensors[1].name, "model.x.weight_scale");
  EXPECT_EQ(tensors[1].dtype, DType::kF32);
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{6, 1}));
}

TEST(Plan, ShardsEndBeforeTheyOverflow) {
  const checkpoint::Tensor small = Matrix(1, 50);   // 100 bytes
  const checkpoint::Tensor large = Matrix(1, 500);  // 1,000 bytes: more than a shard
  Plan plan;
  for (const auto* source : {&small, &small, &small, &large, &small}) {
    plan.tensors.push_back({source, Action::kCopy, gemma::Part::kBody, "x"});
  }
  plan.tensors.push_back({&large, Action::kDropTower, gemma::Part::kVision, ""});
  EXPECT_EQ(SplitShards(plan, DType::kF16, 200), (std::vector<size_t>{2, 3, 4, 6}));
  EXPECT_EQ(SplitShards(plan, DType::kF16, 1 << 20), (std::vector<size_t>{6}));
}

}  // namespace
}  // namespace nibble::repack
