// GGUF: the one-file container of llama.cpp, typed metadata and tensors; a reader of headers and a
// writer that streams.
//
// Layout, little-endian: "GGUF", version u32 (3; 2 has the same layout), tensor count u64, metadata
// count u64; each metadata entry is a key, a value type u32 and the value; each tensor a name, a
// number of dimensions u32, dimensions u64, a type u32 and an offset u64 into the data area, which
// begins at the next multiple of the alignment ("general.alignment", 32 if absent). A string is a
// length u64 and bytes; an array an element type u32, a count u64 and values without their type.
// The reader trusts nothing: counts and lengths are bounded by the bytes that follow, so that
// memory stays within a small multiple of the file's size, and names, dimensions, types and offsets
// are checked before use. Source: the format's description in the ggml project. Tested by
// gguf_test.cc, against files of gguf-py, and fuzzed by fuzz/gguf_fuzz.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/result.h"
#include "checkpoint/ggml_type.h"

namespace nibble::checkpoint {

inline constexpr uint64_t kGgufDefaultAlignmentBytes = 32;
inline constexpr uint64_t kGgufMaxAlignmentBytes = uint64_t{1} << 20;
inline constexpr size_t kGgufMaxDims = 4;
inline constexpr int kGgufMaxArrayDepth = 4;  // llama.cpp itself takes 1
// Longer tensor names are legal here, but llama.cpp refuses them: the writer writes none.
inline constexpr size_t kGgufMaxWrittenNameBytes = 63;

struct GgufArray;

// A metadata value; the alternative's index is the file's value type.
using GgufValue = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool,
                               std::string, GgufArray, uint64_t, int64_t, double>;

// An array; again the index is the type, here of the elements.
struct GgufArray {
  std::variant<std::vector<uint8_t>, std::vector<int8_t>, std::vector<uint16_t>,
               std::vector<int16_t>, std::vector<uint32_t>, std::vector<int32_t>,
               std::vector<float>, std::vector<bool>, std::vector<std::string>,
               std::vector<GgufArray>, std::vector<uint64_t>, std::vector<int64_t>,
               std::vector<double>>
      elements;
};

struct GgufEntry {
  std::string key;
  GgufValue value;
};

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  // Innermost first, as in the file: the [N, K] of safetensors is {K, N}. At most 4, each >= 0,
  // the first one a multiple of the type's block.
  std::vector<int64_t> dims;
  uint64_t offset_bytes = 0;  // from the start of the data area; a multiple of the alignment
  uint64_t size_bytes = 0;
};

struct GgufHeader {
  uint32_t version = 3;
  std::vector<GgufEntry> metadata;  // in the order of the file, as are the tensors
  std::vector<GgufTensor> tensors;  // within the file, not overlapping
  uint64_t data_begin_bytes = 0;    // offset of the data area in the file

  // Null if there is none of that name.
  const GgufValue* FindValue(std::string_view key) const;
  const GgufTensor* FindTensor(std::string_view name) const;
};

// Parses and checks a file's header. `file`: the whole file; `where` begins error messages, which
// name the key or the tensor and the fault.
Result<GgufHeader> ParseGgufHeader(std::span<const std::byte> file, std::string_view where);

// "UINT32", "STRING", "ARRAY of STRING": as the format's description calls it.
std::string GgufTypeName(const GgufValue& value);

// The value of `key`, or an error that names it: missing, or not of type T.
template <typename T>
Result<T> GetGguf(const GgufHeader& header, std::string_view key, std::string_view where);

// The elements of the array `key`, valid as long as the header.
template <typename T>
Result<const std::vector<T>*> GetGgufArray(const GgufHeader& header, std::string_view key,
                                           std::string_view where);

// The value of `key`, of whichever integer type its writer chose. Also an error if negative.
Result<uint64_t> GetGgufUnsigned(const GgufHeader& header, std::string_view key,
                                 std::string_view where);

// The bytes of a file (version 3) before its first tensor, and how many of padding follow a tensor
// of so many. Of `tensors` only name, type and dims are read. Keys and names are unique and not
// empty; an entry "general.alignment", if there is one, is obeyed. `where` begins error messages.
struct GgufLayout {
  std::string header;
  uint64_t alignment_bytes = kGgufDefaultAlignmentBytes;

  uint64_t PaddingAfter(uint64_t size_bytes) const {
    return (alignment_bytes - size_bytes % alignment_bytes) % alignment_bytes;
  }
};
Result<GgufLayout> LayOutGguf(std::span<const GgufEntry> metadata,
                              std::span<const GgufTensor> tensors, std::string_view where);

// Writes one GGUF file (version 3): declare metadata and tensors, then append the tensors' bytes in
// the declared order in pieces of any size; padding is the writer's. Same declaration, same bytes.
class GgufWriter {
 public:
  // As of LayOutGguf.
  static Result<GgufWriter> Create(const std::filesystem::path& path,
                                   std::span<const GgufEntry> metadata,
                                   std::span<const GgufTensor> tensors);

  // Error if these are more bytes than declared.
  Status Append(std::span<const std::byte> bytes);

  // Error if the bytes appended are not all of those declared.
  Status Commit();

 private:
  GgufWriter(AtomicFile file, GgufLayout layout, std::vector<uint64_t> tensor_bytes);

  AtomicFile file_;
  GgufLayout layout_;
  std::vector<uint64_t> tensor_bytes_;  // still to come, per tensor
  size_t tensor_idx_ = 0;
};

template <typename T>
Result<T> GetGguf(const GgufHeader& header, std::string_view key, std::string_view where) {
  const GgufValue* const value = header.FindValue(key);
  if (value == nullptr) return Fail("{}: no key {}", where, QuoteForMessage(key));
  if (const T* const found = std::get_if<T>(value)) return *found;
  return Fail("{}: key {}: expected {}, found {}", where, QuoteForMessage(key),
              GgufTypeName(GgufValue(std::in_place_type<T>)), GgufTypeName(*value));
}

template <typename T>
Result<const std::vector<T>*> GetGgufArray(const GgufHeader& header, std::string_view key,
                                           std::string_view where) {
  const GgufValue* const value = header.FindValue(key);
  if (value == nullptr) return Fail("{}: no key {}", where, QuoteForMessage(key));
  const auto* const array = std::get_if<GgufArray>(value);
  if (array != nullptr) {
    if (const auto* const found = std::get_if<std::vector<T>>(&array->elements)) return found;
  }
  return Fail("{}: key {}: expected {}, found {}", where, QuoteForMessage(key),
              GgufTypeName(GgufArray{std::vector<T>()}), GgufTypeName(*value));
}

}  // namespace nibble::checkpoint
