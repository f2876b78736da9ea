// int8 times int8 over a whole row. Dot products take unsigned times signed bytes: the code's size
// times the input with the code's sign, whose pairs stay below 2 * 128 * 127 < 2^15.
#include <cstring>

#include "kernels/avx2/avx2.h"
#include "kernels/avx2/lanes.h"
#include "kernels/floats16/lanes.h"
#include "kernels/floats16/prefetch.h"

namespace nibble::kernels::avx2 {
namespace {

// One tile, as two halves of eight rows, and kTokens tokens at once.
template <int kTokens>
void Pass(const WeightView& w, int64_t tile_idx, const int8_t* x, const float* x_scales, float* y) {
  const int64_t padded = w.n_blocks * kBlockK;
  const std::byte* tile = w.tiles + tile_idx * w.tile_bytes;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sums[kTokens][2] = {};
  for (int64_t k = 0; k < padded; k += 4) {
    if (k % kBlockK == 0) floats16::PrefetchNextTiles(w, tile_idx, 1, k / kBlockK);
    const auto* bytes = reinterpret_cast<const __m256i*>(tile + k * kTileRows);
    const __m256i codes[2] = {_mm256_load_si256(bytes), _mm256_load_si256(bytes + 1)};
    const __m256i sizes[2] = {_mm256_abs_epi8(codes[0]), _mm256_abs_epi8(codes[1])};
    for (int t = 0; t < kTokens; ++t) {
      int32_t four = 0;
      std::memcpy(&four, x + t * padded + k, sizeof four);
      const __m256i values = _mm256_set1_epi32(four);
      for (int half = 0; half < 2; ++half) {
        const __m256i pairs =
            _mm256_maddubs_epi16(sizes[half], _mm256_sign_epi8(values, codes[half]));
        sums[t][half] = _mm256_add_epi32(sums[t][half], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
  const int64_t first_row = tile_idx * kTileRows;
  for (int t = 0; t < kTokens; ++t) {
    const Floats sum = {_mm256_cvtepi32_ps(sums[t][0]), _mm256_cvtepi32_ps(sums[t][1])};
    floats16::StoreFirst(sum * Floats::All(x_scales[t]) * Floats::Load(w.row_scales + first_row),
                         y + t * w.n_rows + first_row, w.n_rows - first_row);
  }
}

}  // namespace

void MatmulInt8Channel(const WeightView& w, int64_t tile_begin, int64_t tile_end, const int8_t* x,
                       const float* x_scales, int64_t n_tokens, float* y) {
  const int64_t padded = w.n_blocks * kBlockK;
  for (int64_t tile_idx = tile_begin; tile_idx < tile_end; ++tile_idx) {
    int64_t t = 0;
    for (; t + 4 <= n_tokens; t += 4) {
      Pass<4>(w, tile_idx, x + t * padded, x_scales + t, y + t * w.n_rows);
    }
    for (; t < n_tokens; ++t) {
      Pass<1>(w, tile_idx, x + t * padded, x_scales + t, y + t * w.n_rows);
    }
  }
}

}  // namespace nibble::kernels::avx2
