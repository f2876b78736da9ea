#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/json.h"
#include "checkpoint/fingerprint.h"

namespace nibble::checkpoint {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::string pattern = testing::TempDir() + "nibble_checkpoint_XXXXXX";
    root_ = ::mkdtemp(pattern.data());
    dir_ = root_ / "model";
    fs::create_directory(dir_);
  }
  ~CheckpointTest() override { fs::remove_all(root_); }

  // A file of U8 tensors, each filled with `fill`.
  static void WriteShard(const fs::path& path, const std::vector<std::string>& names,
                         int64_t elements, char fill) {
    std::vector<TensorInfo> tensors;
    for (const std::string& name : names) {
      tensors.push_back({.name = name, .dtype = DType::kU8, .shape = {elements}});
    }
    auto writer = SafetensorsWriter::Create(path, tensors, {});
    ASSERT_TRUE(writer.has_value()) << writer.error().message;
    const std::string bytes(names.size() * static_cast<size_t>(elements), fill);
    ASSERT_TRUE(writer->Append(std::as_bytes(std::span(bytes))).has_value());
    ASSERT_TRUE(writer->Commit().has_value());
  }

  void WriteIndexText(const std::string& text) const {
    ASSERT_TRUE(WriteFile(dir_ / "model.safetensors.index.json", text).has_value());
  }

  std::string ErrorOf(const fs::path& path) const {
    const auto checkpoint = Checkpoint::Open(path);
    if (checkpoint.has_value()) return "no error";
    EXPECT_EQ(checkpoint.error().message.find('\n'), std::string::npos);
    return checkpoint.error().message;
  }

  fs::path root_;
  fs::path dir_;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(CheckpointTest, IndexDecidesWhichShardCounts) {
  WriteShard(dir_ / "b.safetensors", {"w2", "both", "unnamed"}, 4, 'b');
  WriteShard(dir_ / "a.safetensors", {"w1", "both"}, 4, 'a');
  WriteIndexText(R"({"metadata":{"total_size":12},"weight_map":)"
                 R"({"both":"b.safetensors","w1":"a.safetensors","w2":"b.safetensors"}})");
  const auto checkpoint = Checkpoint::Open(dir_);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  std::vector<std::string> names;
  for (const Tensor& tensor : checkpoint->tensors()) names.push_back(tensor.info.name);
  EXPECT_EQ(names, (std::vector<std::string>{"w1", "w2", "both"}));
  ASSERT_NE(checkpoint->Find("both"), nullptr);
  EXPECT_EQ(checkpoint->Find("both")->shard, "b.safetensors");
  EXPECT_EQ(checkpoint->Find("both")->bytes[0], std::byte{'b'});
  EXPECT_EQ(checkpoint->Find("both")->bytes.size(), 4u);
  EXPECT_EQ(checkpoint->Find("unnamed"), nullptr);
  EXPECT_EQ(checkpoint->size_bytes(), 12u);
}

TEST_F(CheckpointTest, BytesOutliveAMove) {
  WriteShard(dir_ / "model.safetensors", {"w"}, 4096, 'w');
  std::optional<Checkpoint> moved;
  {
    auto checkpoint = Checkpoint::Open(dir_);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    moved.emplace(*std::move(checkpoint));
  }
  EXPECT_EQ(moved->Find("w")->bytes[4095], std::byte{'w'});
}

TEST_F(CheckpointTest, WithoutIndex) {
  EXPECT_HAS(ErrorOf(dir_), "0 *.safetensors files and neither");
  WriteShard(dir_ / "other.safetensors", {"o"}, 4, 'o');
  EXPECT_TRUE(Checkpoint::Open(dir_)->Find("o") != nullptr);
  WriteShard(dir_ / "another.safetensors", {"p"}, 4, 'p');
  EXPECT_HAS(ErrorOf(dir_), "2 *.safetensors files and neither");
  WriteShard(dir_ / "model.safetensors", {"m"}, 4, 'm');
  EXPECT_TRUE(Checkpoint::Open(dir_)->Find("m") != nullptr);
  EXPECT_TRUE(Checkpoint::Open(dir_ / "other.safetensors")->Find("o") != nullptr);
  EXPECT_HAS(ErrorOf(root_ / "nothing"), "nothing: cannot open");
}

TEST_F(CheckpointTest, BadIndexIsNamed) {
  WriteShard(dir_ / "a.safetensors", {"w"}, 4, 'a');
  const struct {
    const char* index;
    const char* message;
  } kCases[] = {
      {R"({"weight_map":{"w":"gone.safetensors"}})", "shard \"gone.safetensors\": No such file"},
      {R"({"weight_map":{"w":"a.safetensors","v":"a.safetensors"}})",
       "tensor \"v\" is not in its shard a.safetensors"},
      {R"({"weight_map":{"w":"a.safetensors","w":"a.safetensors"}})", "duplicate key \"w\""},
      {R"({"weight_map":{"w":1}})", "tensor \"w\": shard is not a string"},
      {R"({"weight_map":[]})", "no \"weight_map\" object"},
      {R"({})", "no \"weight_map\" object"},
      {R"([])", "no \"weight_map\" object"},
      {"", "bad JSON"},
      {R"({"weight_map":{"w":""}})", "shard \"\" is not a plain file name"},
      {R"({"weight_map":{"w":"."}})", "shard \".\" is not a plain file name"},
      {R"({"weight_map":{"w":".."}})", "shard \"..\" is not a plain file name"},
      {R"({"weight_map":{"w":"../x.safetensors"}})",
       "shard \"../x.safetensors\" is not a plain file name"},
      {R"({"weight_map":{"w":"/etc/passwd"}})", "shard \"/etc/passwd\" is not a plain file name"},
      {R"({"weight_map":{"w":"./a.safetensors"}})", "is not a plain file name"},
      {R"({"weight_map":{"w":"a.safetensors\u0000"}})", "is not a plain file name"},
  };
  for (const auto& [index, message] : kCases) {
    WriteIndexText(index);
    const std::string error = ErrorOf(dir_);
    EXPECT_HAS(error, message);
    EXPECT_HAS(error, "model.safetensors.index.json: ");
  }
}

TEST_F(CheckpointTest, SymlinkOutOfTheDirectoryIsRefused) {
  WriteShard(root_ / "secret.safetensors", {"w"}, 4, 's');
  fs::create_symlink(root_ / "secret.safetensors", dir_ / "model.safetensors");
  EXPECT_HAS(ErrorOf(dir_), "shard \"model.safetensors\" leads out of the directory, to");
  WriteIndexText(R"({"weight_map":{"w":"model.safetensors"}})");
  EXPECT_HAS(ErrorOf(dir_), "index.json: shard \"model.safetensors\" leads out of the directory");
}

TEST_F(CheckpointTest, SymlinkInsideTheDirectoryIsFine) {
  WriteShard(dir_ / "blob", {"w"}, 4, 's');
  fs::create_symlink("blob", dir_ / "model.safetensors");
  const auto checkpoint = Checkpoint::Open(dir_);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors()[0].shard, "model.safetensors");
}

TEST_F(CheckpointTest, HuggingFaceCacheLayoutIsFine) {
  const fs::path repository = root_ / "models--google--x";
  const fs::path snapshot = repository / "snapshots" / "abc";
  fs::create_directories(snapshot);
  fs::create_directories(repository / "blobs");
  WriteShard(repository / "blobs" / "0123", {"w"}, 4, 'w');
  fs::create_symlink("../../blobs/0123", snapshot / "model.safetensors");
  const auto checkpoint = Checkpoint::Open(snapshot);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_NE(checkpoint->Find("w"), nullptr);

  WriteShard(root_ / "secret.safetensors", {"w"}, 4, 's');
  fs::remove(snapshot / "model.safetensors");
  fs::create_symlink("../../../secret.safetensors", snapshot / "model.safetensors");
  EXPECT_HAS(ErrorOf(snapshot), "leads out of the directory");
}

TEST_F(CheckpointTest, DirectoryNamedThroughASymlinkOrDotsIsFine) {
  WriteShard(dir_ / "model.safetensors", {"w"}, 4, 'w');
  fs::create_directory_symlink(dir_, root_ / "link");
  EXPECT_EQ(ErrorOf(root_ / "link"), "no error");
  EXPECT_EQ(ErrorOf(dir_ / ".." / "model" / ""), "no error");
}

TEST_F(CheckpointTest, TruncatedShardIsRefused) {
  WriteShard(dir_ / "model.safetensors", {"w"}, 400, 'w');
  fs::resize_file(dir_ / "model.safetensors", fs::file_size(dir_ / "model.safetensors") - 100);
  EXPECT_HAS(ErrorOf(dir_), "model.safetensors: tensor \"w\": ends at byte 400");
}

TEST_F(CheckpointTest, FingerprintTellsWeightsApart) {
  const auto fingerprint = [&](const std::vector<std::string>& names, char fill) {
    WriteShard(dir_ / "model.safetensors", names, 4, fill);
    const auto opened = Checkpoint::Open(dir_);
    EXPECT_TRUE(opened.has_value());
    return Fingerprint(*opened);
  };
  const std::string first = fingerprint({"a", "b"}, 'w');
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(fingerprint({"b", "a"}, 'w'), first);
  EXPECT_NE(fingerprint({"a", "b"}, 'x'), first);
  EXPECT_NE(fingerprint({"a", "c"}, 'w'), first);
}

TEST_F(CheckpointTest, IndexIsWrittenAsHuggingFaceDoes) {
  const std::vector<std::pair<std::string, std::string>> map = {
      {"b", "model-00002-of-00002.safetensors"}, {"a", "model-00001-of-00002.safetensors"}};
  // json.dumps(index, indent=2, sort_keys=True) + "\n", as save_pretrained writes it.
  EXPECT_EQ(IndexText(map, 12), R"({
  "metadata": {
    "total_size": 12
  },
  "weight_map": {
    "a": "model-00001-of-00002.safetensors",
    "b": "model-00002-of-00002.safetensors"
  }
}
)");
}

}  // namespace
}  // namespace nibble::checkpoint
