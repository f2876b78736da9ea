#include "checkpoint/gguf_file.h"

#include <gtest/gtest.h>

#include <array>

#include "base/atomic_file.h"

namespace nibble::checkpoint {
namespace {

namespace fs = std::filesystem;

TEST(GgufFile, GivesEachTensorItsBytes) {
  const fs::path path = fs::path(testing::TempDir()) / "nibble_gguf_file_test.gguf";
  const std::vector<GgufTensor> tensors = {{.name = "a", .type = GgmlType::kI8, .dims = {3}},
                                           {.name = "b", .type = GgmlType::kI8, .dims = {2}}};
  auto writer = GgufWriter::Create(path, {}, tensors);
  ASSERT_TRUE(writer.has_value()) << writer.error().message;
  const std::array bytes = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}};
  ASSERT_TRUE(writer->Append(bytes).has_value());
  ASSERT_TRUE(writer->Commit().has_value());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const auto b = file->Bytes(*file->header().FindTensor("b"));
  EXPECT_EQ(std::vector(b.begin(), b.end()), (std::vector{std::byte{4}, std::byte{5}}));
  EXPECT_TRUE(IsGgufPath(path));
  fs::remove(path);
}

TEST(GgufFile, WhatIsNoneIsAnErrorThatNamesTheFile) {
  const fs::path path = fs::path(testing::TempDir()) / "nibble_no_gguf.gguf";
  ASSERT_TRUE(WriteFile(path, "not a GGUF file").has_value());
  const auto file = GgufFile::Open(path);
  ASSERT_FALSE(file.has_value());
  EXPECT_NE(file.error().message.find(path.string()), std::string::npos);
  fs::remove(path);
  EXPECT_FALSE(IsGgufPath(testing::TempDir()));
  EXPECT_FALSE(IsGgufPath("model.safetensors"));
}

}  // namespace
}  // namespace nibble::checkpoint
