// int8 times int8 over a whole row: each lane of a dot product adds four k of one row.
#include "kernels/floats16/lanes.h"
#include "kernels/floats16/prefetch.h"
#include "kernels/neon/lanes.h"
#include "kernels/neon/neon.h"

namespace nibble::kernels::neon {
namespace {

// One tile, as four vectors of four rows, and kTokens tokens at once.
template <int kTokens>
void Pass(const WeightView& w, int64_t tile_idx, const int8_t* x, const float* x_scales, float* y) {
  const int64_t padded = w.n_blocks * kBlockK;
  const auto* tile = reinterpret_cast<const int8_t*>(w.tiles + tile_idx * w.tile_bytes);
  int32x4_t sums[kTokens][4] = {};
  for (int64_t k = 0; k < padded; k += 16) {
    if (k % kBlockK == 0) floats16::PrefetchNextTiles(w, tile_idx, 1, k / kBlockK);
    int8x16_t values[kTokens];
    for (int t = 0; t < kTokens; ++t) values[t] = vld1q_s8(x + t * padded + k);
    const auto add = [&]<int kQuad>() {
      for (int i = 0; i < 4; ++i) {
        const int8x16_t codes = vld1q_s8(tile + (k + 4 * kQuad) * kTileRows + i * 16);
        for (int t = 0; t < kTokens; ++t) {
          sums[t][i] = vdotq_laneq_s32(sums[t][i], codes, values[t], kQuad);
        }
      }
    };
    add.template operator()<0>();
    add.template operator()<1>();
    add.template operator()<2>();
    add.template operator()<3>();
  }
  const int64_t first_row = tile_idx * kTileRows;
  for (int t = 0; t < kTokens; ++t) {
    Floats sum;
    for (int i = 0; i < 4; ++i) sum.part[i] = vcvtq_f32_s32(sums[t][i]);
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

}  // namespace nibble::kernels::neon
