// int8 times int8 over a whole row. Dot products take unsigned times signed bytes: codes stand 128
// higher, and 128 times the sum of the input is taken off at the end.
#include <cstring>

#include "kernels/avx512/avx512.h"
#include "kernels/avx512/lanes.h"
#include "kernels/floats16/prefetch.h"

namespace nibble::kernels::avx512 {
namespace {

// Two tiles, kTokens tokens at once.
template <int kTiles, int kTokens>
void Pass(const WeightView& w, int64_t tile_idx, const int8_t* x, const float* x_scales, float* y) {
  const int64_t padded = w.n_blocks * kBlockK;
  const __m512i high_bits = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i sums[kTokens][kTiles] = {};
  __m512i x_sums[kTokens] = {};
  for (int64_t k = 0; k < padded; k += 4) {
    if (k % kBlockK == 0) floats16::PrefetchNextTiles(w, tile_idx, kTiles, k / kBlockK);
    __m512i codes[kTiles];
    for (int i = 0; i < kTiles; ++i) {
      const std::byte* tile = w.tiles + (tile_idx + i) * w.tile_bytes;
      codes[i] = _mm512_xor_si512(_mm512_load_si512(tile + k * kTileRows), high_bits);
    }
    for (int t = 0; t < kTokens; ++t) {
      int32_t four = 0;
      std::memcpy(&four, x + t * padded + k, sizeof four);
      const __m512i values = _mm512_set1_epi32(four);
      x_sums[t] = _mm512_dpbusd_epi32(x_sums[t], ones, values);
      for (int i = 0; i < kTiles; ++i) {
        sums[t][i] = _mm512_dpbusd_epi32(sums[t][i], codes[i], values);
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    const __m512i offset = _mm512_slli_epi32(x_sums[t], 7);
    for (int i = 0; i < kTiles; ++i) {
      const int64_t first_row = (tile_idx + i) * kTileRows;
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[t][i], offset));
      const __m512 scaled = _mm512_mul_ps(_mm512_mul_ps(sum, _mm512_set1_ps(x_scales[t])),
                                          _mm512_loadu_ps(w.row_scales + first_row));
      _mm512_mask_storeu_ps(y + t * w.n_rows + first_row, FirstLanes(w.n_rows - first_row), scaled);
    }
  }
}

}  // namespace

void QuantizeRows(const float* x, int64_t n_rows, int64_t n_columns, int8_t* codes, float* scales) {
  const int64_t padded = (n_columns + kBlockK - 1) / kBlockK * kBlockK;
  for (int64_t row = 0; row < n_rows; ++row, x += n_columns, codes += padded) {
    __m512 size = _mm512_setzero_ps();
    for (int64_t i = 0; i < n_columns; i += 16) {
      const __m512 values = _mm512_maskz_loadu_ps(FirstLanes(n_columns - i), x + i);
      size = _mm512_max_ps(_mm512_abs_ps(values), size);  // a NaN leaves `size`
    }
    const float ratio = _mm512_reduce_max_ps(size) / 127.0f;  // 0 for subnormal values, too
    scales[row] = ratio > 0 ? ratio : 1.0f;
    const __m512 scale = _mm512_set1_ps(scales[row]);
    for (int64_t i = 0; i < padded; i += 16) {
      const __mmask16 mask = i < n_columns ? FirstLanes(n_columns - i) : __mmask16{0};
      __m512 code = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, x + i), scale);
      code = _mm512_min_ps(_mm512_max_ps(code, _mm512_set1_ps(-127.0f)), _mm512_set1_ps(127.0f));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i),
                       _mm512_cvtepi32_epi8(_mm512_maskz_cvtps_epi32(mask, code)));
    }
  }
}

void MatmulInt8Channel(const WeightView& w, int64_t tile_begin, int64_t tile_end, const int8_t* x,
                       const float* x_scales, int64_t n_tokens, float* y) {
  const int64_t padded = w.n_blocks * kBlockK;
  for (int64_t tile_idx = tile_begin; tile_idx < tile_end;) {
    const int n_tiles = tile_idx + 2 <= tile_end ? 2 : 1;
    int64_t t = 0;
    for (; t + 4 <= n_tokens; t += 4) {
      const auto pass = n_tiles == 2 ? Pass<2, 4> : Pass<1, 4>;
      pass(w, tile_idx, x + t * padded, x_scales + t, y + t * w.n_rows);
    }
    for (; t < n_tokens; ++t) {
      const auto pass = n_tiles == 2 ? Pass<2, 1> : Pass<1, 1>;
      pass(w, tile_idx, x + t * padded, x_scales + t, y + t * w.n_rows);
    }
    tile_idx += n_tiles;
  }
}

}  // namespace nibble::kernels::avx512
