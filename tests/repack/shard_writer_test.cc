#include "repack/shard_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/mapped_file.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

class ShardWriterTest : public testing::Test {
 protected:
  ShardWriterTest() : path_(fs::path(testing::TempDir()) / "nibble_shard_writer_test") {}
  ~ShardWriterTest() override { fs::remove(path_); }

  const fs::path path_;
};

TEST_F(ShardWriterTest, BytesWrittenAheadAreHashedInTheirPlace) {
  constexpr size_t kRows = 50;
  constexpr size_t kRowBytes = 100'000;
  PiecePool pieces(2);
  auto writer = ShardWriter::Create(path_, "head");
  ASSERT_TRUE(writer.has_value()) << writer.error().message;
  const uint64_t ahead = (*writer)->position_bytes() + kRows * kRowBytes;
  std::string expected = "head";
  std::string expected_ahead;
  for (size_t i = 0; i < kRows; ++i) {
    const PiecePool::Buffer buffer = pieces.Take(kRowBytes + 3);
    const auto row = std::span(*buffer).first(kRowBytes + 3);
    std::ranges::fill(row, static_cast<std::byte>(i));
    ASSERT_TRUE((*writer)->WriteAhead(ahead + 3 * i, {row.last(3), buffer}).has_value());
    ASSERT_TRUE((*writer)->WriteNext({row.first(kRowBytes), buffer}).has_value());
    expected.append(kRowBytes, static_cast<char>(i));
    expected_ahead.append(3, static_cast<char>(i));
  }
  ASSERT_TRUE((*writer)->PassWritten(3 * kRows).has_value());
  ASSERT_TRUE((*writer)->WriteNext(pieces.TakeFor(Bytes("tail"))).has_value());
  EXPECT_FALSE(fs::exists(path_));
  const auto written = (*writer)->Commit();
  ASSERT_TRUE(written.has_value()) << written.error().message;
  expected += expected_ahead + "tail";
  EXPECT_EQ(*ReadTextFile(path_), expected);
  EXPECT_EQ(written->size_bytes, expected.size());
  EXPECT_EQ(written->sha256, Sha256Hex(Bytes(expected)));
}

// Writing fails behind the maker's back: it gets the error, never hangs on the pool, and the file
// does not appear.
TEST_F(ShardWriterTest, AFullDiskStopsTheMaker) {
  const fs::path partial = path_.string() + ".partial";
  fs::create_symlink("/dev/full", partial);
  {
    PiecePool pieces(2);
    // The header is written at once and would fail at once.
    auto writer = ShardWriter::Create(path_, "");
    ASSERT_TRUE(writer.has_value()) << writer.error().message;
    Status status;
    for (int i = 0; i < 100 && status.has_value(); ++i) {
      const PiecePool::Buffer buffer = pieces.Take(1000);
      status = (*writer)->WriteNext({*buffer, buffer});
    }
    if (status.has_value()) {
      const auto written = (*writer)->Commit();
      ASSERT_FALSE(written.has_value());
      status = std::unexpected(written.error());
    }
    EXPECT_NE(status.error().message.find("No space left"), std::string::npos)
        << status.error().message;
  }
  EXPECT_FALSE(fs::exists(path_));
  EXPECT_FALSE(fs::exists(fs::symlink_status(partial)));
}

}  // namespace
}  // namespace nibble::repack
