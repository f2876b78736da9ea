// The golden files are gguf-py's own (make_golden.py); malformed ones are built by hand.
#include "checkpoint/gguf.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>

#include "base/mapped_file.h"

namespace nibble::checkpoint {
namespace {

std::string Golden(std::string_view name) {
  return ReadTextFile(fmt::format("{}/tests/checkpoint/golden/{}", NIBBLE_SOURCE_DIR, name))
      .value();
}

Result<GgufHeader> ParseGguf(const std::string& file) {
  // An exactly sized heap buffer, so that ASan sees a read past the end.
  const std::vector<char> exact(file.begin(), file.end());
  return ParseGgufHeader(std::as_bytes(std::span(exact)), "f.gguf");
}

std::string GgufErrorOf(const std::string& file) {
  const auto header = ParseGguf(file);
  return header.has_value() ? "no error" : header.error().message;
}

template <typename T>
std::string Raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
std::string U32(uint32_t value) { return Raw(value); }
std::string U64(uint64_t value) { return Raw(value); }
std::string Str(const std::string& text) { return U64(text.size()) + text; }

std::string Preamble(uint64_t n_tensors, uint64_t n_entries) {
  return "GGUF" + U32(3) + U64(n_tensors) + U64(n_entries);
}

constexpr uint32_t kUint32 = 4;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;

// A file whose only content is one metadata entry: a value type and what follows it.
std::string OneEntry(const std::string& type_and_value) {
  return Preamble(0, 1) + Str("k") + type_and_value;
}

std::string Tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type_id,
                   uint64_t offset_bytes) {
  std::string text = Str(name) + U32(static_cast<uint32_t>(dims.size()));
  for (const uint64_t dim : dims) text += U64(dim);
  return text + U32(type_id) + U64(offset_bytes);
}

// A file without metadata, and a data area of `data_bytes`.
std::string Tensors(const std::vector<std::string>& tensors, size_t data_bytes) {
  std::string file = Preamble(tensors.size(), 0);
  for (const std::string& tensor : tensors) file += tensor;
  file.resize((file.size() + 31) / 32 * 32);
  return file + std::string(data_bytes, 'x');
}

std::string TensorBytes(const std::string& file, const GgufHeader& header,
                        const std::string& name) {
  const GgufTensor* const tensor = header.FindTensor(name);
  if (tensor == nullptr) return "no tensor " + name;
  return file.substr(header.data_begin_bytes + tensor->offset_bytes, tensor->size_bytes);
}

TEST(GgmlTypeTest, AgreesWithGgufPy) {
  std::istringstream table(Golden("ggml_types.tsv"));
  uint32_t type_id = 0;
  std::string name;
  int64_t block_size = 0;
  int64_t block_bytes = 0;
  int n_types = 0;
  while (table >> type_id >> name >> block_size >> block_bytes) {
    const auto info = FindGgmlType(type_id);
    ASSERT_TRUE(info.has_value()) << name;
    EXPECT_EQ(info->name, name);
    EXPECT_EQ(info->block_size, block_size) << name;
    EXPECT_EQ(info->block_bytes, block_bytes) << name;
    ++n_types;
  }
  EXPECT_EQ(n_types, 34);
  for (const uint32_t withdrawn : {4u, 5u, 31u, 38u, 43u, ~0u}) {
    EXPECT_FALSE(FindGgmlType(withdrawn).has_value()) << withdrawn;
  }
}

template <typename T>
void ExpectScalarAndArray(const GgufHeader& header, const std::string& type, const T& value) {
  const auto scalar = GetGguf<T>(header, "scalar." + type, "f.gguf");
  ASSERT_TRUE(scalar.has_value()) << scalar.error().message;
  EXPECT_EQ(*scalar, value) << type;
  const auto array = GetGgufArray<T>(header, "array." + type, "f.gguf");
  ASSERT_TRUE(array.has_value()) << array.error().message;
  EXPECT_EQ(**array, (std::vector<T>{value, T(), value})) << type;
}

TEST(GgufReaderTest, ReadsEveryValueTypeOfGgufPy) {
  const auto header = ParseGguf(Golden("all_types.gguf"));
  ASSERT_TRUE(header.has_value()) << header.error().message;
  EXPECT_EQ(header->version, 3u);
  ASSERT_EQ(header->metadata.size(), 26u);
  EXPECT_EQ(header->metadata.front().key, "general.architecture");
  EXPECT_EQ(GetGguf<std::string>(*header, "general.architecture", "").value(), "gemma4");
  ExpectScalarAndArray<uint8_t>(*header, "UINT8", 200);
  ExpectScalarAndArray<int8_t>(*header, "INT8", -100);
  ExpectScalarAndArray<uint16_t>(*header, "UINT16", 60'000);
  ExpectScalarAndArray<int16_t>(*header, "INT16", -30'000);
  ExpectScalarAndArray<uint32_t>(*header, "UINT32", 4'000'000'000);
  ExpectScalarAndArray<int32_t>(*header, "INT32", -2'000'000'000);
  ExpectScalarAndArray<float>(*header, "FLOAT32", 0.15625f);
  ExpectScalarAndArray<bool>(*header, "BOOL", true);
  ExpectScalarAndArray<std::string>(*header, "STRING", "<|turn>\u2581\u00e9\n");
  ExpectScalarAndArray<uint64_t>(*header, "UINT64", 10'000'000'000'000'000'000u);
  ExpectScalarAndArray<int64_t>(*header, "INT64", -9'000'000'000'000'000'000);
  ExpectScalarAndArray<double>(*header, "FLOAT64", 0.1);
  const auto nested = GetGgufArray<GgufArray>(*header, "array.nested", "");
  ASSERT_TRUE(nested.has_value()) << nested.error().message;
  ASSERT_EQ((*nested)->size(), 3u);
  EXPECT_EQ(std::get<std::vector<int32_t>>((**nested)[0].elements), (std::vector{1, -2}));
  EXPECT_EQ(std::get<std::vector<int32_t>>((**nested)[2].elements), (std::vector{4, 5, 6}));
}

TEST(GgufReaderTest, ReadsTheTensorsOfGgufPy) {
  const std::map<std::string, std::pair<GgmlType, std::vector<int64_t>>> expected = {
      {"f32", {GgmlType::kF32, {3, 2}}},       {"f16", {GgmlType::kF16, {5}}},
      {"bf16", {GgmlType::kBF16, {4, 3}}},     {"blk.0.ffn_down.weight", {GgmlType::kQ40, {96, 2}}},
      {"q8_0", {GgmlType::kQ80, {32, 1}}},     {"token_embd.weight", {GgmlType::kQ6K, {256, 2}}},
      {"i32", {GgmlType::kI32, {4, 3, 1, 2}}}, {"i8", {GgmlType::kI8, {3}}},
      {"f64", {GgmlType::kF64, {1}}},
  };
  for (const auto& [name, alignment_bytes] :
       {std::pair("all_types.gguf", 32u), {"aligned.gguf", 128u}}) {
    const std::string file = Golden(name);
    const auto header = ParseGguf(file);
    ASSERT_TRUE(header.has_value()) << header.error().message;
    EXPECT_EQ(header->data_begin_bytes % alignment_bytes, 0u);
    ASSERT_EQ(header->tensors.size(), expected.size());
    for (const GgufTensor& tensor : header->tensors) {
      ASSERT_TRUE(expected.contains(tensor.name)) << tensor.name;
      EXPECT_EQ(tensor.type, expected.at(tensor.name).first) << tensor.name;
      EXPECT_EQ(tensor.dims, expected.at(tensor.name).second) << tensor.name;
      EXPECT_EQ(tensor.offset_bytes % alignment_bytes, 0u);
    }
    EXPECT_EQ(TensorBytes(file, *header, "f32"),
              Raw(std::array{0.0f, 0.25f, 0.5f, 0.75f, 1.0f, 1.25f}));
    EXPECT_EQ(TensorBytes(file, *header, "i8"), "\x80\x7f" + std::string(1, '\0'));
    std::string pattern;
    for (int i = 0; i < 420; ++i) pattern += static_cast<char>(i * 7 + 3);
    EXPECT_EQ(TensorBytes(file, *header, "token_embd.weight"), pattern);
    EXPECT_EQ(TensorBytes(file, *header, "blk.0.ffn_down.weight"), pattern.substr(0, 108));
  }
}

TEST(GgufReaderTest, GettersNameTheKeyAndTheTypes) {
  const auto header = ParseGguf(Golden("all_types.gguf"));
  ASSERT_TRUE(header.has_value());
  EXPECT_EQ(GetGguf<float>(*header, "no.such", "f").error().message, "f: no key \"no.such\"");
  EXPECT_EQ(GetGguf<float>(*header, "scalar.UINT32", "f").error().message,
            "f: key \"scalar.UINT32\": expected FLOAT32, found UINT32");
  EXPECT_EQ(GetGgufArray<int32_t>(*header, "array.STRING", "f").error().message,
            "f: key \"array.STRING\": expected ARRAY of INT32, found ARRAY of STRING");
  EXPECT_EQ(GetGgufArray<int32_t>(*header, "scalar.INT32", "f").error().message,
            "f: key \"scalar.INT32\": expected ARRAY of INT32, found INT32");
  EXPECT_EQ(GetGgufUnsigned(*header, "scalar.UINT8", "f").value(), 200u);
  EXPECT_EQ(GetGgufUnsigned(*header, "scalar.UINT64", "f").value(), 10'000'000'000'000'000'000u);
  EXPECT_EQ(GetGgufUnsigned(*header, "scalar.INT16", "f").error().message,
            "f: key \"scalar.INT16\": expected a count, found -30000");
  EXPECT_EQ(GetGgufUnsigned(*header, "scalar.BOOL", "f").error().message,
            "f: key \"scalar.BOOL\": expected an integer, found BOOL");
}

TEST(GgufReaderTest, EmptyFilesScalarsAndEmptyTensorsAreLegal) {
  EXPECT_TRUE(ParseGguf(Preamble(0, 0)).has_value());  // ends before its data area begins
  EXPECT_TRUE(ParseGguf("GGUF" + U32(2) + U64(0) + U64(0)).has_value());
  const auto header = ParseGguf(
      Tensors({Tensor("e", {0, 7}, 2, 32), Tensor("s", {}, 0, 32), Tensor("f", {8}, 0, 0)}, 36));
  ASSERT_TRUE(header.has_value()) << header.error().message;
  EXPECT_EQ(header->FindTensor("e")->size_bytes, 0u);
  EXPECT_EQ(header->FindTensor("s")->size_bytes, 4u);
  EXPECT_EQ(header->tensors[2].name, "f");
  const auto empty_array = ParseGguf(OneEntry(U32(kArray) + U32(kString) + U64(0)));
  ASSERT_TRUE(empty_array.has_value()) << empty_array.error().message;
  EXPECT_TRUE(GetGgufArray<std::string>(*empty_array, "k", "").value()->empty());
}

void ExpectErrors(const std::vector<std::pair<std::string, std::string>>& cases) {
  for (const auto& [file, message] : cases) {
    const std::string error = GgufErrorOf(file);
    EXPECT_NE(error.find(message), std::string::npos) << "expected " << message << ": " << error;
    EXPECT_EQ(error.rfind("f.gguf: ", 0), 0u) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_LT(error.size(), 500u) << error;
  }
}

std::string NestedArrays(int depth) {
  std::string value = U32(kArray);
  for (int i = 1; i < depth; ++i) value += U32(kArray) + U64(1);
  return OneEntry(value + U32(kUint32) + U64(1) + U32(7));
}

TEST(GgufReaderTest, MalformedMetadataIsNamed) {
  const auto alignment = [](const std::string& type_and_value) {
    return Preamble(0, 1) + Str("general.alignment") + type_and_value;
  };
  EXPECT_TRUE(ParseGguf(NestedArrays(kGgufMaxArrayDepth)).has_value());
  EXPECT_TRUE(ParseGguf(alignment(U32(kUint32) + U32(1 << 20))).has_value());
  ExpectErrors({
      {"", "4 bytes are expected, but only 0 follow"},
      {"GGML" + U32(3) + U64(0) + U64(0), "does not begin with \"GGUF\""},
      {"GGUF" + U32(1) + U64(0) + U64(0), "GGUF version 1, expected 2 or 3"},
      {"GGUF" + U32(0x03000000) + U64(0) + U64(0), "a big-endian file?"},
      {Preamble(uint64_t{1} << 60, 0), "1152921504606846976 tensors do not fit"},
      {Preamble(0, uint64_t{1} << 60), "1152921504606846976 metadata entries do not fit"},
      {Preamble(0, ~uint64_t{0}), "metadata entries do not fit"},
      {Preamble(0, 1) + U64(uint64_t{1} << 40) + "abcdef",
       "string of 1099511627776 bytes, but only"},
      {Preamble(0, 1) + Str("") + U32(kUint32) + U32(0), "key \"\": empty"},
      {Preamble(0, 2) + Str("k") + U32(0) + "a" + Str("k") + U32(0) + "b",
       "key \"k\": stands in the file twice"},
      {OneEntry(U32(13) + U64(0)), "key \"k\": unknown value type 13"},
      {OneEntry(U32(~0u) + U64(0)), "unknown value type 4294967295"},
      {OneEntry(U32(kArray) + U32(77) + U64(0)), "unknown value type 77"},
      {OneEntry(U32(7) + "\x02"), "key \"k\": BOOL is neither 0 nor 1 but 2"},
      {OneEntry(U32(kArray) + U32(7) + U64(2) + "\x01\x07"), "BOOL is neither 0 nor 1 but 7"},
      {OneEntry(U32(10) + U32(0)), "key \"k\": 8 bytes are expected, but only 4 follow"},
      {OneEntry(U32(kString) + U64(uint64_t{1} << 40) + std::string(100, 'x')),
       "key \"k\": string of 1099511627776 bytes, but only 100 follow"},
      {OneEntry(U32(kString) + U64(~uint64_t{0})), "string of 18446744073709551615 bytes"},
      {OneEntry(U32(kArray) + U32(kUint32) + U64(uint64_t{1} << 62) + U32(0)),
       "key \"k\": 4611686018427387904 elements do not fit into the 4 bytes"},
      {OneEntry(U32(kArray) + U32(kString) + U64(uint64_t{1} << 60) + U64(0)),
       "elements do not fit"},
      {NestedArrays(kGgufMaxArrayDepth + 1), "key \"k\": arrays nested deeper than 4"},
      {NestedArrays(10'000), "key \"k\": arrays nested deeper than 4"},
      {alignment(U32(kUint32) + U32(0)), "\"general.alignment\": expected a power of two"},
      {alignment(U32(kUint32) + U32(48)), "power of two up to 1048576, found 48"},
      {alignment(U32(kUint32) + U32(1 << 21)), "found 2097152"},
      {alignment(U32(10) + U64(32)), "\"general.alignment\": expected UINT32, found UINT64"},
      {Preamble(0, 1) + Str("a\nERROR: b") + U32(99) + "x", "key \"a\\nERROR: b\": unknown"},
      {Preamble(0, 1) + Str(std::string(10'000, 'n')) + U32(99) + "x", "unknown value type 99"},
  });
}

TEST(GgufReaderTest, MalformedTensorsAreNamed) {
  const uint64_t two_to_32 = uint64_t{1} << 32;
  ExpectErrors({
      {Tensors({Tensor("", {1}, 0, 0)}, 4), "tensor \"\": empty name"},
      {Tensors({Tensor("t", {1}, 0, 0), Tensor("t", {1}, 0, 32)}, 64),
       "tensor \"t\": stands in the file twice"},
      {Tensors({Tensor("t", std::vector<uint64_t>(9, 1), 0, 0)}, 4), "tensor \"t\": 9 dimensions"},
      {Tensors({Str("t") + U32(~0u) + U64(1)}, 4), "4294967295 dimensions, at most 4"},
      {Tensors({Tensor("t", {~uint64_t{0}}, 0, 0)}, 4), "dimension 18446744073709551615"},
      {Tensors({Tensor("t", {two_to_32, two_to_32}, 0, 0)}, 4),
       "tensor \"t\": F32 [4294967296, 4294967296] overflows"},
      {Tensors({Tensor("t", {two_to_32, two_to_32, two_to_32, two_to_32}, 24, 0)}, 4), "overflows"},
      {Tensors({Tensor("t", {uint64_t{1} << 61}, 0, 0)}, 4), "overflows"},
      {Tensors({Tensor("t", {1}, 4, 0)}, 4), "tensor \"t\": unknown ggml type 4"},
      {Tensors({Tensor("t", {1}, 1000, 0)}, 4), "tensor \"t\": unknown ggml type 1000"},
      {Tensors({Tensor("t", {33}, 2, 0)}, 64),
       "tensor \"t\": rows of 33 elements are not whole blocks of Q4_0, which have 32"},
      {Tensors({Tensor("t", {}, 14, 0)}, 210), "rows of 1 elements are not whole blocks of Q6_K"},
      {Tensors({Tensor("t", {16, 16}, 14, 0)}, 210), "rows of 16 elements"},
      {Tensors({Tensor("t", {1}, 0, 4)}, 8), "tensor \"t\": offset 4 is not a multiple of 32"},
      {Tensors({Tensor("t", {8}, 0, 0)}, 31),
       "tensor \"t\": 32 bytes at byte 0 of the data, but there are only 31: truncated?"},
      {Tensors({Tensor("t", {8}, 0, ~uint64_t{31})}, 32), "32 bytes at byte 18446744073709551584"},
      {Tensors({Tensor("t", {0}, 0, 64)}, 32), "0 bytes at byte 64 of the data"},
      {Tensors({Tensor("a", {9}, 0, 0), Tensor("b", {8}, 0, 32)}, 64),
       "tensor \"b\": begins at byte 32 of the data, within \"a\""},
      {Tensors({Tensor("a", {8}, 0, 0), Tensor("b", {8}, 0, 0)}, 64), "within \"a\""},
      {Preamble(1, 0) + Tensor("t", {8}, 0, 0),
       "32 bytes at byte 0 of the data, but there are only"},
  });
}

// Every prefix of a good file is refused up to the last byte of the last tensor; what follows is
// padding.
TEST(GgufReaderTest, EveryTruncationIsCaught) {
  const std::string whole = Golden("all_types.gguf");
  const auto header = ParseGguf(whole);
  ASSERT_TRUE(header.has_value());
  const GgufTensor& last = header->tensors.back();
  const size_t end_bytes = header->data_begin_bytes + last.offset_bytes + last.size_bytes;
  ASSERT_LE(end_bytes, whole.size());
  for (size_t n = 0; n < end_bytes; ++n)
    EXPECT_FALSE(ParseGguf(whole.substr(0, n)).has_value()) << n;
  EXPECT_TRUE(ParseGguf(whole.substr(0, end_bytes)).has_value());
}

TEST(GgufReaderTest, HostileCountsCostNoMemory) {
  // Each claims as many elements as could fit, and then has none of them.
  std::string file = Preamble(0, 1) + Str("k") + U32(kArray) + U32(kString) + U64(100'000);
  file += std::string(1'000'000, '\xff');
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  EXPECT_NE(GgufErrorOf(file).find("string of"), std::string::npos);
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 * 1024);  // KiB
}

class GgufWriterTest : public testing::Test {
 protected:
  GgufWriterTest() {
    std::string name = (std::filesystem::temp_directory_path() / "gguf_test_XXXXXX").string();
    dir_ = mkdtemp(name.data());
  }
  ~GgufWriterTest() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path dir_;
};

// What gguf-py wrote, read and written again in pieces of 7 bytes: the same file, byte for byte. So
// whatever gguf-py reads from its own files, it reads from ours.
TEST_F(GgufWriterTest, WritesTheBytesOfGgufPy) {
  for (const char* const name : {"all_types.gguf", "aligned.gguf"}) {
    const std::string golden = Golden(name);
    const auto header = ParseGguf(golden);
    ASSERT_TRUE(header.has_value()) << header.error().message;
    std::string data;
    for (const GgufTensor& tensor : header->tensors)
      data += TensorBytes(golden, *header, tensor.name);
    const std::filesystem::path path = dir_ / name;
    auto writer = GgufWriter::Create(path, header->metadata, header->tensors);
    ASSERT_TRUE(writer.has_value()) << writer.error().message;
    for (size_t begin = 0; begin < data.size(); begin += 7) {
      const std::string piece = data.substr(begin, 7);
      ASSERT_TRUE(writer->Append(std::as_bytes(std::span(piece))).has_value());
    }
    EXPECT_FALSE(std::filesystem::exists(path));
    ASSERT_TRUE(writer->Commit().has_value());
    EXPECT_TRUE(ReadTextFile(path).value() == golden) << name;
  }
}

TEST_F(GgufWriterTest, EmptyTensorsAndArraysComeBack) {
  const std::filesystem::path path = dir_ / "out.gguf";
  const std::vector<GgufEntry> metadata = {{"none", GgufArray{std::vector<std::string>()}}};
  std::vector<GgufTensor> tensors(4);
  const std::vector<std::pair<std::string, std::vector<int64_t>>> kTensors = {
      {"first", {0}}, {"second", {3}}, {"third", {5, 0}}, {"fourth", {}}};
  for (size_t i = 0; i < tensors.size(); ++i)
    std::tie(tensors[i].name, tensors[i].dims) = kTensors[i];
  auto writer = GgufWriter::Create(path, metadata, tensors);
  ASSERT_TRUE(writer.has_value()) << writer.error().message;
  ASSERT_TRUE(writer->Append(std::as_bytes(std::span("0123456789abcdef", 16))).has_value());
  ASSERT_TRUE(writer->Commit().has_value());
  const std::string file = ReadTextFile(path).value();
  const auto header = ParseGguf(file);
  ASSERT_TRUE(header.has_value()) << header.error().message;
  EXPECT_TRUE(GetGgufArray<std::string>(*header, "none", "").value()->empty());
  EXPECT_EQ(TensorBytes(file, *header, "second"), "0123456789ab");
  EXPECT_EQ(TensorBytes(file, *header, "fourth"), "cdef");
  EXPECT_EQ(header->tensors[0].dims, (std::vector<int64_t>{0}));
}

TEST_F(GgufWriterTest, WrongByteCountsAndLongNamesLeaveNoFile) {
  const std::filesystem::path path = dir_ / "out.gguf";
  std::vector<GgufTensor> tensors(1);
  tensors[0].name = "t";
  tensors[0].dims = {2};
  {
    auto writer = GgufWriter::Create(path, {}, tensors);
    ASSERT_TRUE(writer.has_value()) << writer.error().message;
    const std::vector<std::byte> bytes(9);
    ASSERT_TRUE(writer->Append(std::span(bytes).first(7)).has_value());
    EXPECT_NE(writer->Commit().error().message.find("1 bytes fewer than declared"),
              std::string::npos);
    EXPECT_NE(writer->Append(std::span(bytes).first(2)).error().message.find("1 bytes more"),
              std::string::npos);
  }
  tensors[0].name = std::string(64, 'n');
  const auto writer = GgufWriter::Create(path, {}, tensors);
  ASSERT_FALSE(writer.has_value());
  EXPECT_NE(writer.error().message.find("name of 64 bytes, readers accept 63"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

}  // namespace
}  // namespace nibble::checkpoint
