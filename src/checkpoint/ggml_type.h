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

enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
  kQ1_0 = 41,
  kQ2_0 = 42,
};

struct GgmlTypeInfo {
  GgmlType type = GgmlType::kF32;
  std::string_view name;   // "Q4_0"
  int64_t block_size = 1;  // elements; a row is a whole number of blocks
  int64_t block_bytes = 0;
};

// Nothing for an id that we do not know.
std::optional<GgmlTypeInfo> FindGgmlType(uint32_t type_id);

// Bytes of a tensor of these dimensions, innermost first; each >= 0, none at all for a scalar, and
// the first one a multiple of the block. Nothing if its elements or bytes do not fit into int64_t.
std::optional<uint64_t> GgmlSizeBytes(const GgmlTypeInfo& info, std::span<const int64_t> dims);

}  // namespace nibble::checkpoint
