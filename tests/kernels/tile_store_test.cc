// Pieces of memory, saved and mapped again.
#include "kernels/tile_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/packed_weight.h"

namespace nibble::kernels {
namespace {

class TileStoreTest : public testing::Test {
 protected:
  TileStoreTest() {
    std::string name = testing::TempDir() + "nibble_tiles_XXXXXX";
    directory_ = mkdtemp(name.data());
    file_ = directory_ / "model.tiles";
  }
  ~TileStoreTest() override { std::filesystem::remove_all(directory_); }

  ThreadPool pool_{2};
  std::filesystem::path directory_;
  std::filesystem::path file_;
};

TEST_F(TileStoreTest, PiecesAreAlignedApartAndOutliveTheStore) {
  std::vector<std::shared_ptr<std::byte[]>> pieces;
  const std::vector<int64_t> sizes = {1, 64, 65, 100 << 20, 7, 70 << 20, 3};
  {
    TileStore store(pool_);
    for (const int64_t bytes : sizes) pieces.push_back(store.Take(bytes));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces[i].get()) % 64, 0u);
    std::memset(pieces[i].get(), static_cast<int>(i + 1), static_cast<size_t>(sizes[i]));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i][0], std::byte(i + 1));
    EXPECT_EQ(pieces[i][sizes[i] - 1], std::byte(i + 1));
  }
}

// Weights from a saved store equal those that were tiled, and read nothing of the source.
TEST_F(TileStoreTest, ASavedStoreGivesTheSameWeights) {
  std::mt19937 random(1);
  std::vector<uint8_t> codes(40 * 64);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
  const std::vector<float> scales(40, 0.5f);
  const std::vector<uint16_t> int4_scales(40 * 4, 0x2c00);
  TileStore store(pool_);
  const std::vector<PackedWeight> tiled = {
      PackedWeight::FromInt8Channel(std::as_bytes(std::span(codes)),
                                    std::as_bytes(std::span(scales)), DType::kF32, 40, 64, store),
      PackedWeight::FromInt4(std::as_bytes(std::span(codes)), std::as_bytes(std::span(int4_scales)),
                             DType::kF16, 40, 128, store)};
  ASSERT_TRUE(store.Save(file_, "key").has_value());

  auto saved = TileStore::Open(file_, "key", pool_);
  ASSERT_TRUE(saved.has_value()) << saved.error().message;
  const std::vector<PackedWeight> mapped = {
      PackedWeight::FromInt8Channel({}, {}, DType::kF32, 40, 64, *saved),
      PackedWeight::FromInt4({}, {}, DType::kF16, 40, 128, *saved)};
  for (size_t i = 0; i < tiled.size(); ++i) {
    ASSERT_EQ(mapped[i].size_bytes(), tiled[i].size_bytes());
    EXPECT_EQ(std::memcmp(mapped[i].view().tiles, tiled[i].view().tiles,
                          static_cast<size_t>(tiled[i].size_bytes())),
              0);
  }
  EXPECT_EQ(std::memcmp(mapped[0].view().row_scales, scales.data(), 40 * 4), 0);
  EXPECT_EQ(saved->Take(1), nullptr);
}

TEST_F(TileStoreTest, AnotherKeyAndACutFileAreRefused) {
  TileStore store(pool_);
  std::memset(store.Take(1000).get(), 1, 1000);
  ASSERT_TRUE(store.Save(file_, "key").has_value());
  const auto other = TileStore::Open(file_, "other", pool_);
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().message.find("model.tiles: not the tiled weights of this model"),
            std::string::npos);
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 64);
  EXPECT_FALSE(TileStore::Open(file_, "key", pool_).has_value());
  std::filesystem::resize_file(file_, 10);
  EXPECT_FALSE(TileStore::Open(file_, "key", pool_).has_value());
  EXPECT_FALSE(store.Save(directory_ / "missing" / "model.tiles", "key").has_value());
}

}  // namespace
}  // namespace nibble::kernels
