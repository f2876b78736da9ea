// y = x w^T with AVX-512. A vector is the 16 rows of a tile; several tiles and tokens go side by
// side, so that enough independent sums are under way to hide the latency of one. The order of each
// sum is that of kernels.h.
#include <cstring>

#include "kernels/avx512/avx512.h"
#include "kernels/avx512/lanes.h"
#include "kernels/floats16/prefetch.h"
#include "kernels/scalar/scalar.h"

namespace nibble::kernels::avx512 {
namespace {

// Tokens whose sums for two tiles (16 KiB) stay in L1 beside the tiles' block.
constexpr int64_t kChunkTokens = 128;

int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// Rows from token `block / n_blocks` and block `block % n_blocks` on.
template <typename T>
RoundedRows<T> From(const RoundedRows<T>& x, int64_t block) {
  return {x.values + block * kBlockK, x.scales + block, x.offsets + block};
}

// Block `block_idx`'s scales of a tile, as they stand behind the codes.
__m512 LoadScales(const std::byte* scales, DType dtype, int64_t block_idx) {
  if (dtype == DType::kF32) return _mm512_loadu_ps(scales + block_idx * kTileRows * 4);
  const std::byte* bits = scales + block_idx * kTileRows * 2;
  if (dtype == DType::kBF16) return WidenBf16(bits);
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits)));
}

// Where the tiles of a pass begin.
template <int kTiles>
struct Tiles {
  Tiles(const WeightView& w, int64_t tile_idx) : scale_dtype(w.scale_dtype) {
    for (int i = 0; i < kTiles; ++i) {
      blocks[i] = w.tiles + (tile_idx + i) * w.tile_bytes;
      scales[i] = blocks[i] + w.scales_offset;
    }
  }

  const std::byte* blocks[kTiles];
  const std::byte* scales[kTiles];
  DType scale_dtype;
};

using Sums = float[kTileRows];  // of one token and tile

// Adds the products of block `block_idx` with kTokens tokens to `sums` [kTokens][kTiles]. x: the
// first token's values of the block, x_stride apart.
template <int kTiles, int kTokens>
void AddBf16(const Tiles<kTiles>& tiles, int64_t block_idx, int64_t n_k, const float* x,
             int64_t x_stride, Sums* sums) {
  __m512 part[kTokens][kTiles] = {};
  for (int64_t k = 0; k < n_k; ++k) {
    __m512 w[kTiles];
    for (int i = 0; i < kTiles; ++i) {
      w[i] = WidenBf16(tiles.blocks[i] + block_idx * kBf16BlockBytes + k * kTileRows * 2);
    }
    for (int t = 0; t < kTokens; ++t) {
      const __m512 value = _mm512_set1_ps(x[t * x_stride + k]);
      for (int i = 0; i < kTiles; ++i) part[t][i] = _mm512_fmadd_ps(value, w[i], part[t][i]);
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int i = 0; i < kTiles; ++i) {
      float* sum = sums[t * kTiles + i];
      _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), part[t][i]));
    }
  }
}

template <int kTiles, int kTokens>
void AddInt4(const Tiles<kTiles>& tiles, int64_t block_idx, const float* x, int64_t x_stride,
             Sums* sums) {
  // Permuting reads the low four bits of a lane: the table turns code + 8 into the code.
  const __m512 codes = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  __m512 part[kTokens][kTiles] = {};
  for (int run = 0; run < 4; ++run, x += 8) {
    __m512i words[kTiles];
    for (int i = 0; i < kTiles; ++i) {
      words[i] = _mm512_load_si512(tiles.blocks[i] + block_idx * kInt4BlockBytes + run * 64);
    }
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      __m512 w[kTiles];
      for (int i = 0; i < kTiles; ++i) {
        w[i] = _mm512_permutexvar_ps(_mm512_srli_epi32(words[i], k % 4 * 8 + k / 4 * 4), codes);
      }
      for (int t = 0; t < kTokens; ++t) {
        const __m512 value = _mm512_set1_ps(x[t * x_stride + k]);
        for (int i = 0; i < kTiles; ++i) part[t][i] = _mm512_fmadd_ps(value, w[i], part[t][i]);
      }
    }
  }
  for (int i = 0; i < kTiles; ++i) {
    const __m512 scale = LoadScales(tiles.scales[i], tiles.scale_dtype, block_idx);
    for (int t = 0; t < kTokens; ++t) {
      float* sum = sums[t * kTiles + i];
      _mm512_store_ps(sum, _mm512_fmadd_ps(part[t][i], scale, _mm512_load_ps(sum)));
    }
  }
}

// The codes (+ 8) of a block, each vector four consecutive k of 16 rows, and its scales.
template <int kTiles>
struct Int4Block {
  Int4Block(const Tiles<kTiles>& tiles, int64_t block_idx) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < kTiles; ++i) {
      for (int run = 0; run < 4; ++run) {
        const __m512i word =
            _mm512_load_si512(tiles.blocks[i] + block_idx * kInt4BlockBytes + run * 64);
        codes[i][2 * run] = _mm512_and_si512(word, low);
        codes[i][2 * run + 1] = _mm512_and_si512(_mm512_srli_epi16(word, 4), low);
      }
      scales[i] = LoadScales(tiles.scales[i], tiles.scale_dtype, block_idx);
    }
  }

  __m512i codes[kTiles][8];
  __m512 scales[kTiles];
};

// The four bytes at `at` in every lane.
__m512i Broadcast(const void* at) {
  int32_t four = 0;
  std::memcpy(&four, at, sizeof four);
  return _mm512_set1_epi32(four);
}

// What widens bytes `first` and `first` + 1 of each lane to 16 bits by a shuffle.
__m512i Spread(int first) {
  const auto zero_between = static_cast<int>(0x80008000);  // a byte with the highest bit gives zero
  const auto lane = [&](int idx) {
    return zero_between | (4 * idx + first + 1) << 16 | (4 * idx + first);
  };
  return _mm512_set4_epi32(lane(3), lane(2), lane(1), lane(0));
}

// Adds the products of four k with kTokens tokens' values, n_values apart.
template <int kTiles, int kTokens>
void AddQuad(const Int4Block<kTiles>& block, int quad, const int8_t* values, int64_t n_values,
             __m512i (*part)[kTiles]) {
  for (int t = 0; t < kTokens; ++t) {
    const __m512i four = Broadcast(values + t * n_values);
    for (int i = 0; i < kTiles; ++i) {
      part[t][i] = _mm512_dpbusd_epi32(part[t][i], block.codes[i][quad], four);
    }
  }
}

template <int kTiles, int kTokens>
void AddQuad(const Int4Block<kTiles>& block, int quad, const int16_t* values, int64_t n_values,
             __m512i (*part)[kTiles]) {
  // Bytes 0 and 1, or 2 and 3, of each lane widened to 16 bits.
  const __m512i first = Spread(0);
  const __m512i second = Spread(2);
  __m512i codes[kTiles][2];
  for (int i = 0; i < kTiles; ++i) {
    codes[i][0] = _mm512_shuffle_epi8(block.codes[i][quad], first);
    codes[i][1] = _mm512_shuffle_epi8(block.codes[i][quad], second);
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int pair = 0; pair < 2; ++pair) {
      const __m512i two = Broadcast(values + t * n_values + int64_t{2} * pair);
      for (int i = 0; i < kTiles; ++i) {
        part[t][i] = _mm512_dpwssd_epi32(part[t][i], codes[i][pair], two);
      }
    }
  }
}

// x: the first token's block, the next token's n_blocks further on.
template <int kTiles, int kTokens, typename T>
void AddRounded(const Int4Block<kTiles>& block, const RoundedRows<T>& x, int64_t n_blocks,
                Sums* sums) {
  __m512i part[kTokens][kTiles];
  for (int t = 0; t < kTokens; ++t) {
    for (int i = 0; i < kTiles; ++i) part[t][i] = _mm512_set1_epi32(x.offsets[t * n_blocks]);
  }
#pragma GCC unroll 8
  for (int quad = 0; quad < 8; ++quad) {
    AddQuad<kTiles, kTokens>(block, quad, x.values + quad * 4, n_blocks * kBlockK, part);
  }
  for (int t = 0; t < kTokens; ++t) {
    const __m512 scale = _mm512_set1_ps(x.scales[t * n_blocks]);
    for (int i = 0; i < kTiles; ++i) {
      float* sum = sums[t * kTiles + i];
      const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(part[t][i]), scale);
      _mm512_store_ps(sum, _mm512_fmadd_ps(product, block.scales[i], _mm512_load_ps(sum)));
    }
  }
}

// Stores the sums of kTiles tiles into the rows that exist.
template <int kTiles>
void Store(const Sums* sums, const WeightView& w, int64_t tile_idx, int64_t n_tokens, float* y) {
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int i = 0; i < kTiles; ++i) {
      const int64_t first_row = (tile_idx + i) * kTileRows;
      const __mmask16 mask = FirstLanes(w.n_rows - first_row);
      _mm512_mask_storeu_ps(y + t * w.n_rows + first_row, mask,
                            _mm512_load_ps(sums[t * kTiles + i]));
    }
  }
}

// One pass over kTiles tiles for up to kChunkTokens tokens, kTokens of them at once.
template <int kTiles, int kTokens>
void PassFloat(const WeightView& w, int64_t tile_idx, const float* x, int64_t n_tokens, float* y) {
  alignas(64) Sums sums[kTokens == 1 ? kTiles : kChunkTokens * kTiles];
  std::memset(sums, 0, sizeof(Sums) * static_cast<size_t>(n_tokens * kTiles));
  const Tiles<kTiles> tiles(w, tile_idx);
  const int64_t stride = w.n_columns;
  const auto add = [&]<int kCount>(int64_t block_idx, int64_t t) {
    const int64_t k = block_idx * kBlockK;
    if (w.format == WeightFormat::kInt4) {
      AddInt4<kTiles, kCount>(tiles, block_idx, x + t * stride + k, stride, sums + t * kTiles);
    } else {
      AddBf16<kTiles, kCount>(tiles, block_idx, Min(kBlockK, stride - k), x + t * stride + k,
                              stride, sums + t * kTiles);
    }
  };
  for (int64_t block_idx = 0; block_idx < w.n_blocks; ++block_idx) {
    floats16::PrefetchNextTiles(w, tile_idx, kTiles, block_idx);
    int64_t t = 0;
    for (; t + kTokens <= n_tokens; t += kTokens) add.template operator()<kTokens>(block_idx, t);
    for (; t < n_tokens; ++t) add.template operator()<1>(block_idx, t);
  }
  Store<kTiles>(sums, w, tile_idx, n_tokens, y);
}

template <int kTiles, int kTokens, typename T>
void PassRounded(const WeightView& w, int64_t tile_idx, const RoundedRows<T>& x, int64_t n_tokens,
                 float* y) {
  alignas(64) Sums sums[kTokens == 1 ? kTiles : kChunkTokens * kTiles];
  std::memset(sums, 0, sizeof(Sums) * static_cast<size_t>(n_tokens * kTiles));
  const Tiles<kTiles> tiles(w, tile_idx);
  const int64_t n_blocks = w.n_blocks;
  for (int64_t block_idx = 0; block_idx < n_blocks; ++block_idx) {
    floats16::PrefetchNextTiles(w, tile_idx, kTiles, block_idx);
    const Int4Block<kTiles> block(tiles, block_idx);
    const auto at = [&](int64_t t) { return From(x, t * n_blocks + block_idx); };
    int64_t t = 0;
    for (; t + kTokens <= n_tokens; t += kTokens) {
      AddRounded<kTiles, kTokens>(block, at(t), n_blocks, sums + t * kTiles);
    }
    for (; t < n_tokens; ++t) AddRounded<kTiles, 1>(block, at(t), n_blocks, sums + t * kTiles);
  }
  Store<kTiles>(sums, w, tile_idx, n_tokens, y);
}

template <typename T>
void MultiplyRounded(const WeightView& w, int64_t tile_begin, int64_t tile_end,
                     const RoundedRows<T>& x, int64_t n_tokens, float* y) {
  if (n_tokens == 1) {  // memory is the limit, and four streams of codes get more of it than two
    int64_t tile_idx = tile_begin;
    for (; tile_idx + 4 <= tile_end; tile_idx += 4) PassRounded<4, 1>(w, tile_idx, x, 1, y);
    for (; tile_idx < tile_end; ++tile_idx) PassRounded<1, 1>(w, tile_idx, x, 1, y);
    return;
  }
  for (int64_t first = 0; first < n_tokens; first += kChunkTokens) {
    const int64_t n_chunk = Min(kChunkTokens, n_tokens - first);
    const RoundedRows<T> rows = From(x, first * w.n_blocks);
    float* out = y + first * w.n_rows;
    int64_t tile_idx = tile_begin;
    for (; tile_idx + 2 <= tile_end; tile_idx += 2) {
      PassRounded<2, 4>(w, tile_idx, rows, n_chunk, out);
    }
    if (tile_idx < tile_end) PassRounded<1, 4>(w, tile_idx, rows, n_chunk, out);
  }
}

}  // namespace

void Matmul(const WeightView& w, int64_t tile_begin, int64_t tile_end, const float* x,
            int64_t n_tokens, float* y) {
  if (w.format != WeightFormat::kInt4 && w.format != WeightFormat::kBf16) {
    return scalar::Matmul(w, tile_begin, tile_end, x, n_tokens, y);  // Q6_K heads, float routers
  }
  if (n_tokens == 1) {
    int64_t tile_idx = tile_begin;
    for (; tile_idx + 8 <= tile_end; tile_idx += 8) PassFloat<8, 1>(w, tile_idx, x, 1, y);
    for (; tile_idx < tile_end; ++tile_idx) PassFloat<1, 1>(w, tile_idx, x, 1, y);
    return;
  }
  for (int64_t first = 0; first < n_tokens; first += kChunkTokens) {
    const int64_t n_chunk = Min(kChunkTokens, n_tokens - first);
    const float* rows = x + first * w.n_columns;
    float* out = y + first * w.n_rows;
    int64_t tile_idx = tile_begin;
    for (; tile_idx + 2 <= tile_end; tile_idx += 2)
      PassFloat<2, 4>(w, tile_idx, rows, n_chunk, out);
    if (tile_idx < tile_end) PassFloat<1, 4>(w, tile_idx, rows, n_chunk, out);
  }
}

void MatmulInt8(const WeightView& w, int64_t tile_begin, int64_t tile_end, const Int8Rows& x,
                int64_t n_tokens, float* y) {
  MultiplyRounded(w, tile_begin, tile_end, x, n_tokens, y);
}

void MatmulInt16(const WeightView& w, int64_t tile_begin, int64_t tile_end, const Int16Rows& x,
                 int64_t n_tokens, float* y) {
  MultiplyRounded(w, tile_begin, tile_end, x, n_tokens, y);
}

}  // namespace nibble::kernels::avx512
