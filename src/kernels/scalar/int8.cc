// int8 times int8: inputs quantised per token, sums in int32.
#include <algorithm>
#include <cmath>

#include "kernels/scalar/scalar.h"

namespace nibble::kernels::scalar {

void QuantizeRows(const float* x, int64_t n_rows, int64_t width, int8_t* codes, float* scales) {
  for (int64_t row = 0; row < n_rows; ++row, x += width, codes += width) {
    float largest = 0;
    for (int64_t i = 0; i < width; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = largest > 0 ? largest / 127.0f : 1.0f;
    scales[row] = scale;
    for (int64_t i = 0; i < width; ++i) {
      // The clamp is for subnormal scales, whose rounding is coarse.
      const float code = std::clamp(x[i] / scale, -127.0f, 127.0f);
      codes[i] = static_cast<int8_t>(std::nearbyint(code));
    }
  }
}

void MatmulInt8(const PackedWeight& w, int64_t tile_begin, int64_t tile_end, const int8_t* x,
                const float* x_scales, int64_t n_tokens, float* y) {
  for (int64_t tile_idx = tile_begin; tile_idx < tile_end; ++tile_idx) {
    const auto* tile = reinterpret_cast<const int8_t*>(w.Tile(tile_idx));
    const int64_t first_row = tile_idx * kTileRows;
    const int64_t n_rows = std::min(kTileRows, w.n_rows() - first_row);
    for (int64_t t = 0; t < n_tokens; ++t) {
      const int8_t* x_row = x + t * w.n_columns();
      int32_t sums[kTileRows] = {};
      for (int64_t k = 0; k < w.n_columns(); ++k) {
        for (int64_t row = 0; row < kTileRows; ++row) {
          sums[row] += x_row[k] * tile[k * kTileRows + row];
        }
      }
      for (int64_t row = 0; row < n_rows; ++row) {
        y[t * w.n_rows() + first_row + row] =
            static_cast<float>(sums[row]) * x_scales[t] * w.row_scales()[first_row + row];
      }
    }
  }
}

}  // namespace nibble::kernels::scalar
