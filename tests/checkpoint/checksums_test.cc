#include "checkpoint/checksums.h"

#include <gtest/gtest.h>

#include <string>

#include "base/atomic_file.h"

namespace nibble::checkpoint {
namespace {

namespace fs = std::filesystem;

class ChecksumsTest : public testing::Test {
 protected:
  ChecksumsTest() : dir_(fs::path(testing::TempDir()) / "nibble_checksums_test") {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    Write("a", "abc");
  }
  ~ChecksumsTest() override { fs::remove_all(dir_); }

  void Write(const char* name, std::string_view content) const {
    ASSERT_TRUE(WriteFile(dir_ / name, content).has_value());
  }
  std::string ErrorWith(std::string_view sums) const {
    Write("SHA256SUMS", sums);
    const Status status = CheckSha256Sums(dir_);
    return status.has_value() ? "" : status.error().message;
  }

  // FIPS 180-2, appendix B.1.
  const std::string abc_ = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  const fs::path dir_;
};

TEST_F(ChecksumsTest, WithoutTheFileThereIsNothingToCheck) {
  EXPECT_TRUE(CheckSha256Sums(dir_).has_value());
}

TEST_F(ChecksumsTest, BothModesOfSha256sum) {
  EXPECT_EQ(ErrorWith(abc_ + "  a\n"), "");
  EXPECT_EQ(ErrorWith(abc_ + " *a"), "");
}

TEST_F(ChecksumsTest, OneFlippedByteIsNamed) {
  Write("a", "abb");
  EXPECT_NE(ErrorWith(abc_ + "  a\n").find("nibble_checksums_test/a: damaged: its SHA-256 is"),
            std::string::npos);
}

TEST_F(ChecksumsTest, WhatIsMissingOrOutsideIsRefused) {
  EXPECT_NE(ErrorWith(abc_ + "  b\n").find("b: cannot open"), std::string::npos);
  for (const std::string& line : {abc_ + "  ../a", abc_ + "  ..", abc_ + "  /etc/passwd", abc_,
                                  abc_ + "  ", std::string("a"), std::string("\n" + abc_)}) {
    EXPECT_NE(ErrorWith(line).find("expected a SHA-256 and a plain file name"), std::string::npos)
        << line;
  }
}

}  // namespace
}  // namespace nibble::checkpoint
