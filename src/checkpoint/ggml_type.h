// ggml's tensor types: the ids that stand in GGUF files, their names, and how many bytes a block of
// how many elements takes. Every type is listed, whether nibble computes with it or not, so that
// the size of every tensor of a file can be checked.
//
// Source: the published enumeration and sizes of ggml (ids 4, 5, 31-33 and 36-38 are withdrawn).
// Tested by gguf_test.cc, against a table that gguf-py made.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace nibble::checkpoint {

// The types that code names; every other id of the table is a value of this type as well.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ40 = 2,
  kQ80 = 8,
  kQ6K = 14,
  kI8 = 24,
  kI32 = 26,
  kF64 = 28,
  kBF16 = 30,
};

struct GgmlTypeInfo {
  GgmlType type = GgmlType::kF32;
  std::string_view name;   // "Q4_0"
  int64_t block_size = 1;  // elements; a row is a whole number of blocks
  int64_t block_bytes = 0;
};

// Nothing for an id that we do not know.
std::optional<GgmlTypeInfo> FindGgmlType(uint32_t type_id);

// Of a type that a file's header gave, or that code names.
GgmlTypeInfo InfoOf(GgmlType type);

// Bytes of a tensor of these dimensions, innermost first; each >= 0, none at all for a scalar, and
// the first one a multiple of the block. Nothing if its elements or bytes do not fit into int64_t.
std::optional<uint64_t> GgmlSizeBytes(const GgmlTypeInfo& info, std::span<const int64_t> dims);

}  // namespace nibble::checkpoint
