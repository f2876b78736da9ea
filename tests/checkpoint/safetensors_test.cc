#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <bit>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"

namespace nibble::checkpoint {
namespace {

std::string Length(uint64_t length_bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(length_bytes >> (8 * i) & 0xff);
  return text;
}

std::string File(const std::string& header, size_t data_bytes) {
  return Length(header.size()) + header + std::string(data_bytes, 'x');
}

Result<SafetensorsHeader> Parse(const std::string& file) {
  // An exactly sized heap buffer, so that ASan sees a read past the end.
  const std::vector<char> exact(file.begin(), file.end());
  return ParseSafetensorsHeader(std::as_bytes(std::span(exact)), "f.safetensors");
}

std::string ErrorOf(const std::string& file) {
  const auto header = Parse(file);
  return header.has_value() ? "no error" : header.error().message;
}

TEST(SafetensorsTest, ReadsAFileLaidOutByHand) {
  const auto header = Parse(File(
      R"({"b":{"dtype":"F32","shape":[2,1],"data_offsets":[6,14]},)"
      R"("__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]}}   )",
      14));
  ASSERT_TRUE(header.has_value()) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 2u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_EQ(header->tensors[1].shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(header->tensors[1].offset_bytes, 6u);
  EXPECT_EQ(header->tensors[1].size_bytes, 8u);
  EXPECT_EQ(header->tensors[1].n_elements(), 2);
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(SafetensorsTest, ScalarsAndEmptyTensorsAreLegal) {
  const auto header = Parse(File(R"({"z":{"dtype":"F32","shape":[4,0],"data_offsets":[2,2]},)"
                                 R"("scalar":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
                                 R"("y":{"dtype":"U8","shape":[3],"data_offsets":[2,5]},)"
                                 R"("end":{"dtype":"I64","shape":[0],"data_offsets":[5,5]}})",
                                 5));
  ASSERT_TRUE(header.has_value()) << header.error().message;
  ASSERT_EQ(header->tensors.size(), 4u);
  EXPECT_EQ(header->tensors[0].n_elements(), 1);
  EXPECT_EQ(header->tensors[1].name, "z");
  EXPECT_EQ(header->tensors[1].n_elements(), 0);
  EXPECT_EQ(header->tensors[3].name, "end");
  EXPECT_TRUE(Parse(File("{}", 0)).has_value());
}

TEST(SafetensorsTest, MalformedHeadersAreNamed) {
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return fmt::format(R"({{"t":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape,
                       offsets);
  };
  const std::string two = R"({{"a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},)"
                          R"("b":{{"dtype":"F32","shape":[2],"data_offsets":[{},{}]}}}})";
  const struct {
    std::string file;
    const char* message;
  } kCases[] = {
      // The length.
      {"", "0 bytes are too few"},
      {std::string(7, '\0'), "7 bytes are too few"},
      {Length(0), "does not begin with"},
      {Length(~uint64_t{0}) + "{}", "18446744073709551615 bytes is longer than the limit"},
      {Length(uint64_t{1} << 63) + "{}", "9223372036854775808 bytes is longer than the limit"},
      {Length(200'000'000) + std::string(1016, ' '), "200000000 bytes is longer than the limit"},
      {Length(90'000'000) + "{}", "90000000 bytes, but only 2 follow"},
      {Length(3) + "{}", "3 bytes, but only 2 follow its length: truncated?"},
      // The JSON.
      {File("no json", 0), "does not begin with"},
      {File("[]", 0), "does not begin with"},
      {File("{\"a\":}", 0), "bad JSON"},
      {File("{} {}", 0), "bad JSON"},
      {File("{\"\xff\":1}", 0), "bad JSON"},
      {File(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
            R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
            1),
       "duplicate key \"t\""},
      {File(R"({"t":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1),
       "duplicate key \"dtype\""},
      {File("{\"a\":" + std::string(100'000, '['), 0), "nested deeper than 64"},
      {File(R"({"__metadata__":{"format":7}})", 0), "__metadata__: value of \"format\""},
      {File(R"({"__metadata__":"pt"})", 0), "__metadata__ is not an object"},
      // One entry.
      {File(R"({"t":7})", 0), "tensor \"t\": entry is not an object"},
      {File(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1), "tensor \"t\": no \"dtype\""},
      {File(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1), "tensor \"t\": no \"shape\""},
      {File(R"({"t":{"dtype":"U8","shape":[1]}})", 1), "\"data_offsets\" is not a pair"},
      {File(tensor(R"("F12")", "[1]", "[0,1]"), 1), "unknown dtype \"F12\""},
      {File(tensor("4", "[1]", "[0,1]"), 1), "no \"dtype\" string"},
      {File(tensor(R"("U8")", "[-1]", "[0,1]"), 1), "dimension \"-1\""},
      {File(tensor(R"("U8")", "[1.0]", "[0,1]"), 1), "dimension \"1.0\""},
      {File(tensor(R"("U8")", "[\"1\"]", "[0,1]"), 1), "dimension"},
      {File(tensor(R"("U8")", "[18446744073709551615]", "[0,1]"), 1), "dimension"},
      {File(tensor(R"("U8")", "[99999999999999999999]", "[0,1]"), 1), "dimension"},
      {File(tensor(R"("U8")", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1), "9 dimensions, at most 8"},
      {File(tensor(R"("F32")", "[4294967296,4294967296]", "[0,4]"), 4),
       "shape [4294967296, 4294967296] overflows"},
      {File(tensor(R"("F32")", "[4611686018427387904]", "[0,4]"), 4), "overflows"},
      {File(tensor(R"("F32")", "[1000,1000]", "[0,4000000]"), 4),
       "ends at byte 4000000 of the data, but there are only 4"},
      {File(tensor(R"("F32")", "[1]", "[0,18446744073709551615]"), 4), "ends at byte 184467"},
      {File(tensor(R"("F32")", "[1]", "[0,18446744073709551616]"), 4), "is not a pair"},
      {File(tensor(R"("F32")", "[1]", "[-4,0]"), 4), "is not a pair"},
      {File(tensor(R"("F32")", "[1]", "[4,0]"), 4), "data_offsets reversed: [4, 0]"},
      {File(tensor(R"("F32")", "[1]", "[0,4,8]"), 4), "is not a pair"},
      {File(tensor(R"("F32")", "[2]", "[0,4]"), 4), "F32 [2] takes 8 bytes, data_offsets give 4"},
      {File("{\"" + std::string(1000, 'n') + "\":7}", 0), "name of 1000 bytes"},
      // All entries together.
      {File(fmt::format(fmt::runtime(two), 4, 12), 12), "tensor \"b\" overlaps \"a\""},
      {File(fmt::format(fmt::runtime(two), 0, 8), 8), "tensor \"b\" overlaps \"a\""},
      {File(fmt::format(fmt::runtime(two), 12, 20), 20),
       "gap before tensor \"b\": bytes 8 to 12 of the data"},
      {File(tensor(R"("U8")", "[1]", "[1,2]"), 2), "gap before tensor \"t\": bytes 0 to 1"},
      {File(tensor(R"("U8")", "[1]", "[0,1]"), 5), "4 trailing bytes after the last tensor"},
      {File("{}", 1), "1 trailing bytes"},
  };
  for (const auto& [file, message] : kCases) {
    const std::string error = ErrorOf(file);
    EXPECT_NE(error.find(message), std::string::npos) << "expected " << message << ": " << error;
    EXPECT_EQ(error.rfind("f.safetensors: ", 0), 0u) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_LT(error.size(), 500u) << error;
  }
}

TEST(SafetensorsTest, NamesCannotBreakTheMessageIntoLines) {
  const std::string error = ErrorOf(File("{\"a\\nERROR: b\":7}", 0));
  EXPECT_NE(error.find("\"a\\nERROR: b\""), std::string::npos) << error;
}

// Every prefix of a good file is refused: the header or a tensor ends past it.
TEST(SafetensorsTest, EveryTruncationIsCaught) {
  const std::string whole = File(R"({"a":{"dtype":"BF16","shape":[8],"data_offsets":[0,16]}})", 16);
  ASSERT_TRUE(Parse(whole).has_value());
  for (size_t n = 0; n < whole.size(); ++n)
    EXPECT_FALSE(Parse(whole.substr(0, n)).has_value()) << n;
}

double CpuSeconds(const rusage& usage) {
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(SafetensorsTest, HostileLengthsAndNestingCostNothing) {
  const std::string nested = File("{\"a\":" + std::string(10'000'000, '['), 0);
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  for (const std::string& file :
       {Length(~uint64_t{0}) + "{", Length(kMaxHeaderBytes) + "{", nested}) {
    EXPECT_FALSE(ParseSafetensorsHeader(std::as_bytes(std::span(file)), "f").has_value());
  }
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  // Building the nested document would take seconds and half a gigabyte; this is one copy of it.
  EXPECT_LT(CpuSeconds(after) - CpuSeconds(before), 0.5);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 100'000);  // KiB
}

// A header as large as a mixture-of-experts model's with packed experts.
TEST(SafetensorsTest, TenThousandTensors) {
  std::string header = "{";
  for (int i = 0; i < 10'000; ++i) {
    header += fmt::format(R"({}"model.layers.{}.weight_packed":)"
                          R"({{"dtype":"U8","shape":[1],"data_offsets":[{},{}]}})",
                          i == 0 ? "" : ",", i, i, i + 1);
  }
  const auto parsed = Parse(File(header + "}", 10'000));
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(parsed->tensors.size(), 10'000u);
  EXPECT_EQ(parsed->tensors[9'999].offset_bytes, 9'999u);
}

class WriterTest : public testing::Test {
 protected:
  WriterTest() {
    std::string pattern = testing::TempDir() + "nibble_writer_XXXXXX";
    dir_ = ::mkdtemp(pattern.data());
  }
  ~WriterTest() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path dir_;
};

TEST_F(WriterTest, BytesAreExactlyThoseOfTheFormat) {
  const std::filesystem::path path = dir_ / "out.safetensors";
  const std::vector<TensorInfo> tensors = {
      {.name = "z\"1", .dtype = DType::kI32, .shape = {1, 2}},
      {.name = "a", .dtype = DType::kF16, .shape = {}},
  };
  auto writer = SafetensorsWriter::Create(path, tensors, {{"format", "pt"}});
  ASSERT_TRUE(writer.has_value()) << writer.error().message;
  const std::string data = "0123456789";
  ASSERT_TRUE(writer->Append(std::as_bytes(std::span(data)).first(3)).has_value());
  ASSERT_TRUE(writer->Append(std::as_bytes(std::span(data)).subspan(3)).has_value());
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(writer->Commit().has_value());

  std::string header = R"({"__metadata__":{"format":"pt"},)"
                       R"("z\"1":{"dtype":"I32","shape":[1,2],"data_offsets":[0,8]},)"
                       R"("a":{"dtype":"F16","shape":[],"data_offsets":[8,10]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const auto content = ReadTextFile(path);
  ASSERT_TRUE(content.has_value());
  EXPECT_EQ(*content, Length(header.size()) + header + data);
  EXPECT_TRUE(Parse(*content).has_value());
}

TEST_F(WriterTest, WrongByteCountLeavesNoFile) {
  const std::filesystem::path path = dir_ / "out.safetensors";
  const std::vector<TensorInfo> tensors = {{.name = "a", .dtype = DType::kF32, .shape = {2}}};
  {
    auto writer = SafetensorsWriter::Create(path, tensors, {});
    ASSERT_TRUE(writer.has_value()) << writer.error().message;
    const auto status = writer->Commit();
    ASSERT_FALSE(status.has_value());
    EXPECT_NE(status.error().message.find("declared"), std::string::npos);
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

}  // namespace
}  // namespace nibble::checkpoint
