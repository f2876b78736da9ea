#include "repack/output_file.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/atomic_file.h"
#include "base/mapped_file.h"
#include "base/sha256.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public testing::Test {
 protected:
  OutputFileTest() : dir_(fs::path(testing::TempDir()) / "nibble_output_file_test") {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  ~OutputFileTest() override { fs::remove_all(dir_); }

  Result<OutputFile> Open(bool resume, const Json& made = {{"options", {{"tables", "q4_0"}}}}) {
    return OutputFile::Open(out_, made, "head", 100, resume);
  }
  static void Write(OutputFile& file, std::string text) {
    const auto owner = std::make_shared<const std::string>(std::move(text));
    ASSERT_TRUE(file.WriteNext({std::as_bytes(std::span(*owner)), owner}).has_value());
  }
  std::string ErrorOf(bool resume, const Json& made = {{"options", {{"tables", "q4_0"}}}}) {
    const auto file = Open(resume, made);
    return file.has_value() ? "" : file.error().message;
  }
  // A run that is interrupted behind its note at "head one".
  void Interrupt() {
    auto file = Open(false);
    ASSERT_TRUE(file.has_value()) << file.error().message;
    Write(*file, " one");
    ASSERT_TRUE(file->Note({{"n", 1}}).has_value());
    Write(*file, " lost");
  }

  const fs::path dir_;
  const fs::path out_ = dir_ / "out";
  const fs::path partial_ = dir_ / "out.partial";
  const fs::path manifest_ = dir_ / "out.resume.json";
};

TEST_F(OutputFileTest, AWholeFileIsAllThatIsLeft) {
  auto file = Open(false);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->position_bytes(), 4u);
  EXPECT_TRUE(file->note().is_null());
  Write(*file, " and body");
  EXPECT_FALSE(fs::exists(out_));
  const auto written = file->Commit();
  ASSERT_TRUE(written.has_value()) << written.error().message;
  EXPECT_EQ(*ReadTextFile(out_), "head and body");
  EXPECT_EQ(written->sha256, *Sha256HexOfFile(out_));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), {}), 1);
  EXPECT_EQ(ErrorOf(false), out_.string() + ": exists already");
  EXPECT_EQ(ErrorOf(true), out_.string() + ": exists already");
}

TEST_F(OutputFileTest, AnInterruptedRunIsGoneOnWithFromItsLastNote) {
  Interrupt();
  EXPECT_NE(ErrorOf(false).find("--resume goes on with it"), std::string::npos);
  const std::string other = ErrorOf(true, {{"options", {{"tables", "bf16"}}}});
  EXPECT_NE(other.find("options.tables is \"q4_0\" there and \"bf16\" now"), std::string::npos);
  auto file = Open(true);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->position_bytes(), 8u);
  EXPECT_EQ(file->note(), (Json{{"n", 1}}));
  Write(*file, " two");
  const auto written = file->Commit();
  ASSERT_TRUE(written.has_value()) << written.error().message;
  EXPECT_EQ(*ReadTextFile(out_), "head one two");
  EXPECT_EQ(written->sha256, *Sha256HexOfFile(out_));
  EXPECT_FALSE(fs::exists(manifest_));
}

TEST_F(OutputFileTest, ABeginningThatIsNotWhatItWasIsWrittenAnew) {
  for (const char* damaged : {"Head one", "head"}) {
    Interrupt();
    ASSERT_TRUE(WriteFile(partial_, damaged).has_value());
    auto file = Open(true);
    ASSERT_TRUE(file.has_value()) << file.error().message;
    EXPECT_EQ(file->position_bytes(), 4u) << damaged;
    EXPECT_TRUE(file->note().is_null());
    ASSERT_TRUE(file->Commit().has_value());
    EXPECT_EQ(*ReadTextFile(out_), "head");
    fs::remove(out_);
  }
}

TEST_F(OutputFileTest, KilledWhenOnlyTheManifestWasLeft) {
  Interrupt();
  ASSERT_TRUE(WriteFile(out_, "head one").has_value());
  fs::remove(partial_);
  auto file = Open(true);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_EQ(file->position_bytes(), 8u);
  ASSERT_TRUE(file->Commit().has_value());
  EXPECT_EQ(*ReadTextFile(out_), "head one");
  EXPECT_FALSE(fs::exists(manifest_));
}

TEST_F(OutputFileTest, WhatIsInTheWayOrNoManifestIsNamed) {
  ASSERT_TRUE(WriteFile(partial_, "someone's").has_value());
  EXPECT_NE(ErrorOf(true).find("out.partial: is in the way"), std::string::npos);
  fs::remove(partial_);
  for (const char* text : {"", "{}", R"({"made":{},"note":0,"bytes":-1,"sha256":""})"}) {
    ASSERT_TRUE(WriteFile(manifest_, text).has_value());
    EXPECT_NE(ErrorOf(true).find("out.resume.json: "), std::string::npos) << text;
  }
  fs::remove(manifest_);
  const auto large = OutputFile::Open(out_, {}, "head", ~uint64_t{0} >> 1, false);
  ASSERT_FALSE(large.has_value());
  EXPECT_NE(large.error().message.find("bytes are needed"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(OutputFileTest, DiscardingLeavesNothing) {
  auto file = Open(false);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  EXPECT_TRUE(file->is_resumable());
  file->Discard();
  EXPECT_FALSE(file->is_resumable());
  EXPECT_TRUE(fs::is_empty(dir_));
}

}  // namespace
}  // namespace nibble::repack
