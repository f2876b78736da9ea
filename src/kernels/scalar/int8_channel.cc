// int8 times int8: inputs rounded per token, sums in int32.
#include <algorithm>
#include <cmath>

#include "kernels/scalar/scalar.h"

namespace nibble::kernels::scalar {

void QuantizeRows(const float* x, int64_t n_rows, int64_t n_columns, int8_t* codes, float* scales) {
  const int64_t padded = (n_columns + kBlockK - 1) / kBlockK * kBlockK;
  for (int64_t row = 0; row < n_rows; ++row, x += n_columns, codes += padded) {
    float largest = 0;
    for (int64_t i = 0; i < n_columns; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float ratio = largest / 127.0f;  // 0 for subnormal values, too
    const float scale = ratio > 0 ? ratio : 1.0f;
    scales[row] = scale;
    for (int64_t i = 0; i < n_columns; ++i) {
      // Limited for subnormal scales, whose rounding is coarse, and for what is not finite.
      float code = x[i] / scale;
      code = code > -127.0f ? code : -127.0f;
      code = code < 127.0f ? code : 127.0f;
      codes[i] = static_cast<int8_t>(std::nearbyint(code));
    }
    std::fill(codes + n_columns, codes + padded, int8_t{0});
  }
}

void MatmulInt8Channel(const WeightView& w, int64_t tile_begin, int64_t tile_end, const int8_t* x,
                       const float* x_scales, int64_t n_tokens, float* y) {
  const int64_t padded = w.n_blocks * kBlockK;
  for (int64_t tile_idx = tile_begin; tile_idx < tile_end; ++tile_idx) {
    const auto* tile = reinterpret_cast<const int8_t*>(w.tiles + tile_idx * w.tile_bytes);
    const int64_t first_row = tile_idx * kTileRows;
    const int64_t n_rows = std::min(kTileRows, w.n_rows - first_row);
    for (int64_t t = 0; t < n_tokens; ++t) {
      int32_t sums[kTileRows] = {};
      for (int64_t k = 0; k < padded; ++k) {
        const int8_t* codes = tile + k / 4 * kTileRows * 4 + k % 4;
        for (int64_t row = 0; row < kTileRows; ++row)
          sums[row] += x[t * padded + k] * codes[row * 4];
      }
      for (int64_t row = 0; row < n_rows; ++row) {
        y[t * w.n_rows + first_row + row] =
            static_cast<float>(sums[row]) * x_scales[t] * w.row_scales[first_row + row];
      }
    }
  }
}

}  // namespace nibble::kernels::scalar
