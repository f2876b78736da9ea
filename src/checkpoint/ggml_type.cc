#include "checkpoint/ggml_type.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace nibble::checkpoint {
namespace {

using enum GgmlType;

constexpr std::array kTypes = {
    GgmlTypeInfo{kF32, "F32", 1, 4},
    GgmlTypeInfo{kF16, "F16", 1, 2},
    GgmlTypeInfo{kQ4_0, "Q4_0", 32, 18},
    GgmlTypeInfo{kQ4_1, "Q4_1", 32, 20},
    GgmlTypeInfo{kQ5_0, "Q5_0", 32, 22},
    GgmlTypeInfo{kQ5_1, "Q5_1", 32, 24},
    GgmlTypeInfo{kQ8_0, "Q8_0", 32, 34},
    GgmlTypeInfo{kQ8_1, "Q8_1", 32, 40},
    GgmlTypeInfo{kQ2_K, "Q2_K", 256, 84},
    GgmlTypeInfo{kQ3_K, "Q3_K", 256, 110},
    GgmlTypeInfo{kQ4_K, "Q4_K", 256, 144},
    GgmlTypeInfo{kQ5_K, "Q5_K", 256, 176},
    GgmlTypeInfo{kQ6_K, "Q6_K", 256, 210},
    GgmlTypeInfo{kQ8_K, "Q8_K", 256, 292},
    GgmlTypeInfo{kIQ2_XXS, "IQ2_XXS", 256, 66},
    GgmlTypeInfo{kIQ2_XS, "IQ2_XS", 256, 74},
    GgmlTypeInfo{kIQ3_XXS, "IQ3_XXS", 256, 98},
    GgmlTypeInfo{kIQ1_S, "IQ1_S", 256, 50},
    GgmlTypeInfo{kIQ4_NL, "IQ4_NL", 32, 18},
    GgmlTypeInfo{kIQ3_S, "IQ3_S", 256, 110},
    GgmlTypeInfo{kIQ2_S, "IQ2_S", 256, 82},
    GgmlTypeInfo{kIQ4_XS, "IQ4_XS", 256, 136},
    GgmlTypeInfo{kI8, "I8", 1, 1},
    GgmlTypeInfo{kI16, "I16", 1, 2},
    GgmlTypeInfo{kI32, "I32", 1, 4},
    GgmlTypeInfo{kI64, "I64", 1, 8},
    GgmlTypeInfo{kF64, "F64", 1, 8},
    GgmlTypeInfo{kIQ1_M, "IQ1_M", 256, 56},
    GgmlTypeInfo{kBF16, "BF16", 1, 2},
    GgmlTypeInfo{kTQ1_0, "TQ1_0", 256, 54},
    GgmlTypeInfo{kTQ2_0, "TQ2_0", 256, 66},
    GgmlTypeInfo{kMXFP4, "MXFP4", 32, 17},
    GgmlTypeInfo{kNVFP4, "NVFP4", 64, 36},
    GgmlTypeInfo{kQ1_0, "Q1_0", 128, 18},
    GgmlTypeInfo{kQ2_0, "Q2_0", 64, 18},
};

}  // namespace

std::optional<GgmlTypeInfo> FindGgmlType(uint32_t type_id) {
  const auto* const found = std::ranges::find(kTypes, GgmlType{type_id}, &GgmlTypeInfo::type);
  return found == kTypes.end() ? std::nullopt : std::optional(*found);
}

std::optional<uint64_t> GgmlSizeBytes(const GgmlTypeInfo& info, std::span<const int64_t> dims) {
  int64_t n_elements = 1;
  for (const int64_t dim : dims) {
    if (__builtin_mul_overflow(n_elements, dim, &n_elements)) return std::nullopt;
  }
  CHECK(n_elements % info.block_size == 0);
  int64_t size_bytes = 0;
  if (__builtin_mul_overflow(n_elements / info.block_size, info.block_bytes, &size_bytes)) {
    return std::nullopt;
  }
  return static_cast<uint64_t>(size_bytes);
}

}  // namespace nibble::checkpoint
