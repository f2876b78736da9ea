#include "checkpoint/ggml_type.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace nibble::checkpoint {
namespace {

constexpr std::array kTypes = {
    GgmlTypeInfo{GgmlType{0}, "F32", 1, 4},         GgmlTypeInfo{GgmlType{1}, "F16", 1, 2},
    GgmlTypeInfo{GgmlType{2}, "Q4_0", 32, 18},      GgmlTypeInfo{GgmlType{3}, "Q4_1", 32, 20},
    GgmlTypeInfo{GgmlType{6}, "Q5_0", 32, 22},      GgmlTypeInfo{GgmlType{7}, "Q5_1", 32, 24},
    GgmlTypeInfo{GgmlType{8}, "Q8_0", 32, 34},      GgmlTypeInfo{GgmlType{9}, "Q8_1", 32, 40},
    GgmlTypeInfo{GgmlType{10}, "Q2_K", 256, 84},    GgmlTypeInfo{GgmlType{11}, "Q3_K", 256, 110},
    GgmlTypeInfo{GgmlType{12}, "Q4_K", 256, 144},   GgmlTypeInfo{GgmlType{13}, "Q5_K", 256, 176},
    GgmlTypeInfo{GgmlType{14}, "Q6_K", 256, 210},   GgmlTypeInfo{GgmlType{15}, "Q8_K", 256, 292},
    GgmlTypeInfo{GgmlType{16}, "IQ2_XXS", 256, 66}, GgmlTypeInfo{GgmlType{17}, "IQ2_XS", 256, 74},
    GgmlTypeInfo{GgmlType{18}, "IQ3_XXS", 256, 98}, GgmlTypeInfo{GgmlType{19}, "IQ1_S", 256, 50},
    GgmlTypeInfo{GgmlType{20}, "IQ4_NL", 32, 18},   GgmlTypeInfo{GgmlType{21}, "IQ3_S", 256, 110},
    GgmlTypeInfo{GgmlType{22}, "IQ2_S", 256, 82},   GgmlTypeInfo{GgmlType{23}, "IQ4_XS", 256, 136},
    GgmlTypeInfo{GgmlType{24}, "I8", 1, 1},         GgmlTypeInfo{GgmlType{25}, "I16", 1, 2},
    GgmlTypeInfo{GgmlType{26}, "I32", 1, 4},        GgmlTypeInfo{GgmlType{27}, "I64", 1, 8},
    GgmlTypeInfo{GgmlType{28}, "F64", 1, 8},        GgmlTypeInfo{GgmlType{29}, "IQ1_M", 256, 56},
    GgmlTypeInfo{GgmlType{30}, "BF16", 1, 2},       GgmlTypeInfo{GgmlType{34}, "TQ1_0", 256, 54},
    GgmlTypeInfo{GgmlType{35}, "TQ2_0", 256, 66},   GgmlTypeInfo{GgmlType{39}, "MXFP4", 32, 17},
    GgmlTypeInfo{GgmlType{40}, "NVFP4", 64, 36},    GgmlTypeInfo{GgmlType{41}, "Q1_0", 128, 18},
    GgmlTypeInfo{GgmlType{42}, "Q2_0", 64, 18},
};

}  // namespace

std::optional<GgmlTypeInfo> FindGgmlType(uint32_t type_id) {
  const auto* const found = std::ranges::find(kTypes, GgmlType{type_id}, &GgmlTypeInfo::type);
  return found == kTypes.end() ? std::nullopt : std::optional(*found);
}

GgmlTypeInfo InfoOf(GgmlType type) {
  const auto info = FindGgmlType(static_cast<uint32_t>(type));
  CHECK(info.has_value());
  return *info;
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
