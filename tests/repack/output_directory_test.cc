#include "repack/output_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/atomic_file.h"
#include "base/mapped_file.h"
#include "base/sha256.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;

class OutputDirectoryTest : public testing::Test {
 protected:
  OutputDirectoryTest() : root_(fs::path(testing::TempDir()) / "nibble_output_directory_test") {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~OutputDirectoryTest() override { fs::remove_all(root_); }

  Result<OutputDirectory> Open(bool resume, const char* format = "q4w4a16",
                               uint64_t n_bytes = 100) const {
    return OutputDirectory::Open(out_, {{"options", {{"format", format}, {"x", 1}}}}, n_bytes,
                                 resume);
  }
  std::string ErrorOf(const Result<OutputDirectory>& result) const {
    return result.has_value() ? "no error" : result.error().message;
  }
  // As a shard that was committed and noted.
  static void Finish(OutputDirectory& directory, const std::string& name) {
    ASSERT_TRUE(WriteFile(directory.path() / name, "content of " + name).has_value());
    const std::string sha256 = *Sha256HexOfFile(directory.path() / name);
    const WrittenFile file{.size_bytes = fs::file_size(directory.path() / name), .sha256 = sha256};
    ASSERT_TRUE(directory.AddFinished(name, file, {{"n", 7}}).has_value());
  }

  const fs::path root_;
  const fs::path out_ = root_ / "out";
  const fs::path partial_ = root_ / "out.partial";
};

TEST_F(OutputDirectoryTest, ACompleteDirectoryListsItsFiles) {
  auto directory = Open(false);
  ASSERT_TRUE(directory.has_value()) << directory.error().message;
  Finish(*directory, "model.safetensors");
  ASSERT_TRUE(directory->WriteText("config.json", "{}").has_value());
  EXPECT_FALSE(fs::exists(out_));
  ASSERT_TRUE(directory->Commit().has_value());
  EXPECT_FALSE(fs::exists(partial_));
  EXPECT_FALSE(fs::exists(out_ / "nibble-resume.json"));
  // Written by: printf '{}' | sha256sum, and so on.
  EXPECT_EQ(
      *ReadTextFile(out_ / "SHA256SUMS"),
      "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a  config.json\n" +
          Sha256Hex(std::as_bytes(std::span(std::string_view("content of model.safetensors")))) +
          "  model.safetensors\n");
}

TEST_F(OutputDirectoryTest, AnInterruptedRunIsGoneOnWithOrRefused) {
  {
    auto directory = Open(false);
    ASSERT_TRUE(directory.has_value()) << directory.error().message;
    Finish(*directory, "a");
    Finish(*directory, "b");
    ASSERT_TRUE(WriteFile(directory->path() / "c", "not noted").has_value());
  }
  EXPECT_NE(ErrorOf(Open(false)).find("left by an interrupted run; --resume"), std::string::npos);
  EXPECT_NE(ErrorOf(Open(true, "w8a8")).find(R"(options.format is "q4w4a16" there and "w8a8" now)"),
            std::string::npos)
      << ErrorOf(Open(true, "w8a8"));
  ASSERT_TRUE(WriteFile(partial_ / "b", "content of B").has_value());  // damaged since
  const auto directory = Open(true);
  ASSERT_TRUE(directory.has_value()) << directory.error().message;
  EXPECT_EQ(directory->FindFinished("a"), Json({{"n", 7}}));
  EXPECT_TRUE(directory->FindFinished("b").is_null());
  EXPECT_TRUE(directory->FindFinished("c").is_null());
}

TEST_F(OutputDirectoryTest, AManifestThatIsNoneIsAnErrorOrForgotten) {
  fs::create_directories(partial_);
  for (const char* text : {"", "[]", R"({"made": 1})", R"({"made": 1, "finished": []})"}) {
    ASSERT_TRUE(WriteFile(partial_ / "nibble-resume.json", text).has_value());
    EXPECT_NE(ErrorOf(Open(true)), "no error") << text;
  }
  const Json made = {{"options", {{"format", "q4w4a16"}, {"x", 1}}}};
  const Json finished = {
      {"a", 1}, {"b", {{"bytes", "x"}}}, {"c", {{"bytes", 0}, {"sha256", 2}, {"note", 3}}}};
  ASSERT_TRUE(WriteFile(partial_ / "c", "").has_value());
  ASSERT_TRUE(WriteFile(partial_ / "nibble-resume.json",
                        Json({{"made", made}, {"finished", finished}}).dump())
                  .has_value());
  const auto directory = Open(true);
  ASSERT_TRUE(directory.has_value()) << directory.error().message;
  for (const char* name : {"a", "b", "c"}) {
    EXPECT_TRUE(directory->FindFinished(name).is_null()) << name;
  }
}

TEST_F(OutputDirectoryTest, KilledBetweenRenamingAndRemovingTheManifest) {
  {
    auto directory = Open(false);
    Finish(*directory, "a");
  }
  fs::rename(partial_, out_);
  EXPECT_NE(ErrorOf(Open(false)).find("exists already"), std::string::npos);
  auto directory = Open(true);
  ASSERT_TRUE(directory.has_value()) << directory.error().message;
  EXPECT_FALSE(directory->FindFinished("a").is_null());
  ASSERT_TRUE(directory->Commit().has_value());
  EXPECT_FALSE(fs::exists(out_ / "nibble-resume.json"));
  EXPECT_TRUE(fs::exists(out_ / "a"));
}

TEST_F(OutputDirectoryTest, KilledBeforeTheFirstManifest) {
  fs::create_directories(partial_);
  ASSERT_TRUE(WriteFile(partial_ / "nibble-resume.json.partial", "{").has_value());
  EXPECT_TRUE(Open(false).has_value());
}

TEST_F(OutputDirectoryTest, SomeoneElsesDirectoryIsLeftAlone) {
  fs::create_directories(partial_);
  ASSERT_TRUE(WriteFile(partial_ / "thesis.txt", "x").has_value());
  EXPECT_NE(ErrorOf(Open(false)).find("out.partial: is in the way"), std::string::npos);
  EXPECT_NE(ErrorOf(Open(true)).find("out.partial: is in the way"), std::string::npos);
  EXPECT_TRUE(fs::exists(partial_ / "thesis.txt"));
}

TEST_F(OutputDirectoryTest, NoRoomIsSaidBeforeTheWork) {
  EXPECT_NE(ErrorOf(Open(false, "q4w4a16", uint64_t{1} << 60)).find("are needed and"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(partial_));
}

TEST_F(OutputDirectoryTest, DiscardingLeavesNothing) {
  auto directory = Open(false);
  Finish(*directory, "a");
  directory->Discard();
  EXPECT_TRUE(fs::is_empty(root_));
}

}  // namespace
}  // namespace nibble::repack
