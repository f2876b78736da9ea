// Rows of embedding tables, read in the file's own layout.
#include <cstring>

#include "base/float16.h"
#include "formats/int4_group32.h"
#include "kernels/scalar/scalar.h"

namespace nibble::kernels::scalar {

void GatherBf16(const std::byte* row, int64_t n, float scale, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, row + i * 2, sizeof bits);
    y[i] = Bf16ToFloat(bits) * scale;
  }
}

void GatherInt4(const std::byte* packed, const std::byte* scales, DType scale_dtype, int64_t n,
                float scale, float* y) {
  const int64_t n_groups = n / formats::kGroupSize;
  const std::span<const std::byte> all(scales,
                                       static_cast<size_t>(n_groups * SizeBytes(scale_dtype)));
  for (int64_t group = 0; group < n_groups; ++group) {
    int8_t codes[formats::kGroupSize];
    formats::UnpackGroup(
        std::span<const std::byte, formats::kGroupPackedBytes>(
            packed + group * formats::kGroupPackedBytes, formats::kGroupPackedBytes),
        codes);
    const float group_scale = formats::ReadScale(all, scale_dtype, group);
    for (const int8_t code : codes) *y++ = static_cast<float>(code) * group_scale * scale;
  }
}

}  // namespace nibble::kernels::scalar
