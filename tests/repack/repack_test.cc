// The trained model in models/tiny through repack and verify, split over many small shards.
#include "repack/repack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "repack/verify.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;

class RepackTest : public testing::Test {
 protected:
  RepackTest() : out_(fs::path(testing::TempDir()) / "nibble_repack_test") {
    fs::remove_all(out_);
    options_.n_threads = 2;
  }
  ~RepackTest() override { fs::remove_all(out_); }

  const fs::path source_ = fs::path(NIBBLE_SOURCE_DIR) / "models/tiny";
  const fs::path out_;
  Options options_;
};

TEST_F(RepackTest, ManyShardsHoldTheSameModel) {
  options_.format = Format::kQ4W4A16Emb4;
  options_.max_shard_bytes = 160 << 10;
  uint64_t last_done_bytes = 0;
  uint64_t total_bytes = 1;
  const auto report = Repack(source_, out_, options_, [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last_done_bytes);
    last_done_bytes = done;
    total_bytes = total;
  });
  ASSERT_TRUE(report.has_value()) << report.error().message;
  EXPECT_EQ(last_done_bytes, total_bytes);
  EXPECT_GT(report->shards.size(), 3u);
  EXPECT_FALSE(fs::exists(out_ / "model.safetensors"));
  for (const std::string& shard : report->shards) {
    // One tensor's parts stay together, and a header comes on top.
    EXPECT_LT(fs::file_size(out_ / shard), (160u << 10) + (16u << 10));
  }
  const auto written = checkpoint::Checkpoint::Open(out_);
  ASSERT_TRUE(written.has_value()) << written.error().message;
  EXPECT_EQ(written->size_bytes(), report->output_bytes());
  const auto proof = Verify(source_, out_, 2, {});
  ASSERT_TRUE(proof.has_value()) << proof.error().message;
  EXPECT_TRUE(proof->is_right()) << proof->faults.front();
  EXPECT_EQ(proof->totals.n_right_groups, proof->totals.n_groups);
  EXPECT_EQ(proof->totals.n_bit_identical, proof->totals.n_values);
}

TEST_F(RepackTest, TowersStayByteForByteWhenKept) {
  options_.keep_towers = true;
  const auto report = Repack(source_, out_, options_, {});
  ASSERT_TRUE(report.has_value()) << report.error().message;
  EXPECT_EQ(report->CountOf(Action::kDropTower), 0u);
  const auto proof = Verify(source_, out_, 1, {});
  ASSERT_TRUE(proof.has_value()) << proof.error().message;
  EXPECT_TRUE(proof->is_right()) << proof->faults.front();
  const auto source = checkpoint::Checkpoint::Open(source_);
  const auto written = checkpoint::Checkpoint::Open(out_);
  ASSERT_TRUE(source.has_value() && written.has_value());
  size_t n_towers = 0;
  for (const checkpoint::Tensor& tensor : source->tensors()) {
    if (tensor.info.name.find("_tower.") == std::string::npos) continue;
    const checkpoint::Tensor* copy = written->Find(tensor.info.name);
    ASSERT_NE(copy, nullptr) << tensor.info.name;
    EXPECT_TRUE(std::ranges::equal(copy->bytes, tensor.bytes));
    ++n_towers;
  }
  EXPECT_GT(n_towers, 100u);
}

TEST_F(RepackTest, AnOutputInTheWayIsRefusedAndAnEmptyDirectoryIsNot) {
  fs::create_directories(out_);
  ASSERT_TRUE(Repack(source_, out_ / "", options_, {}).has_value());
  EXPECT_FALSE(Repack(source_, out_, options_, {}).has_value());
}

}  // namespace
}  // namespace nibble::repack
