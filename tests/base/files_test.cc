// Files: atomic writing, mapping, and SHA-256.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "base/atomic_file.h"
#include "base/mapped_file.h"
#include "base/sha256.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

class FilesTest : public testing::Test {
 protected:
  FilesTest() {
    std::string pattern = testing::TempDir() + "nibble_files_XXXXXX";
    dir_ = ::mkdtemp(pattern.data());
  }
  ~FilesTest() override { fs::remove_all(dir_); }

  fs::path dir_;
};

TEST_F(FilesTest, AppearsOnlyWhenCommitted) {
  const fs::path path = dir_ / "out";
  auto file = AtomicFile::Create(path);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  ASSERT_TRUE(file->Append(Bytes("one ")).has_value());
  ASSERT_TRUE(file->Append(Bytes("")).has_value());
  ASSERT_TRUE(file->Append(Bytes("two")).has_value());
  EXPECT_EQ(file->size_bytes(), 7u);
  EXPECT_FALSE(fs::exists(path));
  ASSERT_TRUE(file->Commit().has_value());
  EXPECT_EQ(*ReadTextFile(path), "one two");
  EXPECT_FALSE(fs::exists(dir_ / "out.partial"));
}

TEST_F(FilesTest, DestroyedWithoutCommitLeavesTheOldFile) {
  const fs::path path = dir_ / "out";
  ASSERT_TRUE(WriteFile(path, "old").has_value());
  {
    auto file = AtomicFile::Create(path);
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(file->Append(Bytes("new")).has_value());
    EXPECT_TRUE(fs::exists(dir_ / "out.partial"));
  }
  EXPECT_EQ(*ReadTextFile(path), "old");
  EXPECT_FALSE(fs::exists(dir_ / "out.partial"));
}

// A process that dies in the middle leaves nothing under the final name, and its remains do not
// stand in the way of the next try.
TEST_F(FilesTest, CrashLeavesNoFinalName) {
  const fs::path path = dir_ / "out";
  EXPECT_EXIT(
      {
        auto file = AtomicFile::Create(path);
        if (!file || !file->Append(Bytes("a longer half-written text"))) std::_Exit(1);
        std::_Exit(7);
      },
      testing::ExitedWithCode(7), "");
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(dir_ / "out.partial"));
  ASSERT_TRUE(WriteFile(path, "whole").has_value());
  EXPECT_EQ(*ReadTextFile(path), "whole");
}

TEST_F(FilesTest, MovedFromFileRemovesNothing) {
  const fs::path path = dir_ / "out";
  std::optional<AtomicFile> moved;
  {
    auto file = AtomicFile::Create(path);
    ASSERT_TRUE(file.has_value());
    moved.emplace(*std::move(file));
  }
  ASSERT_TRUE(moved->Append(Bytes("x")).has_value());
  ASSERT_TRUE(moved->Commit().has_value());
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(FilesTest, BytesWrittenAheadArePassedByAppending) {
  const fs::path path = dir_ / "out";
  auto file = AtomicFile::Create(path);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  ASSERT_TRUE(file->Append(Bytes("ab")).has_value());
  ASSERT_TRUE(file->WriteAt(4, Bytes("ef")).has_value());
  ASSERT_TRUE(file->Append(Bytes("cd")).has_value());
  file->Skip(2);
  ASSERT_TRUE(file->Append(Bytes("g")).has_value());
  EXPECT_EQ(file->size_bytes(), 7u);
  std::string back(3, ' ');
  ASSERT_TRUE(file->ReadAt(3, std::as_writable_bytes(std::span(back))).has_value());
  EXPECT_EQ(back, "def");
  const auto past = file->ReadAt(6, std::as_writable_bytes(std::span(back)));
  ASSERT_FALSE(past.has_value());
  EXPECT_NE(past.error().message.find("cannot read back at byte 7: the file ends there"),
            std::string::npos)
      << past.error().message;
  ASSERT_TRUE(file->Commit().has_value());
  EXPECT_EQ(*ReadTextFile(path), "abcdefg");
}

TEST_F(FilesTest, ErrorsNameTheFile) {
  const auto file = AtomicFile::Create(dir_ / "missing" / "out");
  ASSERT_FALSE(file.has_value());
  EXPECT_NE(file.error().message.find("missing/out.partial: cannot create: No such file"),
            std::string::npos)
      << file.error().message;
}

TEST_F(FilesTest, FullDiskIsAnError) {
  // Writing to /dev/full fails as a full disk does.
  fs::create_symlink("/dev/full", dir_ / "out.partial");
  auto file = AtomicFile::Create(dir_ / "out");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const auto status = file->Append(Bytes("text"));
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message.find("cannot write at byte 0: No space left"), std::string::npos)
      << status.error().message;
}

TEST_F(FilesTest, MappingOutlivesMoves) {
  ASSERT_TRUE(WriteFile(dir_ / "a", "aaaa").has_value());
  ASSERT_TRUE(WriteFile(dir_ / "b", "bb").has_value());
  auto a = MappedFile::Open(dir_ / "a");
  ASSERT_TRUE(a.has_value()) << a.error().message;
  const std::byte* address = a->bytes().data();
  MappedFile moved = *std::move(a);
  EXPECT_EQ(moved.bytes().data(), address);
  EXPECT_EQ(moved.path(), dir_ / "a");
  moved = *MappedFile::Open(dir_ / "b");
  EXPECT_EQ(moved.bytes().size(), 2u);
  EXPECT_EQ(moved.bytes()[0], std::byte{'b'});
}

// Pages are let go of and come back; the process's own count says so.
TEST_F(FilesTest, ReleasedPagesAreNotResidentAndReadTheSame) {
  constexpr size_t kBytes = size_t{64} << 20;
  ASSERT_TRUE(WriteFile(dir_ / "large", std::string(kBytes, 'x')).has_value());
  const auto file = MappedFile::Open(dir_ / "large");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const auto resident_bytes = [] {
    std::ifstream statm("/proc/self/statm");
    size_t n_total = 0;
    size_t n_resident = 0;
    statm >> n_total >> n_resident;
    return n_resident * 4096;
  };
  const auto all_x = [&] {
    return std::ranges::all_of(file->bytes(), [](std::byte b) { return b == std::byte{'x'}; });
  };
  const auto odd = file->bytes().subspan(1, kBytes - 2);
  PrefetchPages(odd);
  EXPECT_TRUE(all_x());
  const size_t before = resident_bytes();
  ReleasePages(odd);
  EXPECT_LT(resident_bytes() + kBytes * 9 / 10, before);
  EXPECT_TRUE(all_x());
  PrefetchPages({});
  ReleasePages({});
}

TEST_F(FilesTest, MappingOddFiles) {
  ASSERT_TRUE(WriteFile(dir_ / "empty", "").has_value());
  EXPECT_TRUE(MappedFile::Open(dir_ / "empty")->bytes().empty());
  EXPECT_EQ(*ReadTextFile(dir_ / "empty"), "");
  EXPECT_NE(MappedFile::Open(dir_).error().message.find("not a regular file"), std::string::npos);
  EXPECT_NE(MappedFile::Open(dir_ / "no").error().message.find("no: cannot open: No such file"),
            std::string::npos);
  // A named pipe must not make us wait for a writer.
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  EXPECT_NE(MappedFile::Open(dir_ / "pipe").error().message.find("not a regular file"),
            std::string::npos);
}

TEST_F(FilesTest, DigestOfAFile) {
  ASSERT_TRUE(WriteFile(dir_ / "million", std::string(10'000'000, 'a')).has_value());
  EXPECT_EQ(*Sha256HexOfFile(dir_ / "million"), Sha256Hex(Bytes(std::string(10'000'000, 'a'))));
  EXPECT_FALSE(Sha256HexOfFile(dir_ / "missing").has_value());
}

// FIPS 180-2, appendix B.
TEST(Sha256Test, KnownAnswers) {
  EXPECT_EQ(Sha256Hex(Bytes("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(Bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256Hex(Bytes(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  Sha256 in_pieces;
  in_pieces.Update(Bytes("a"));
  in_pieces.Update({});
  in_pieces.Update(Bytes("bc"));
  EXPECT_EQ(in_pieces.Hex(), Sha256Hex(Bytes("abc")));
  EXPECT_EQ(Sha256Hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace
}  // namespace nibble
