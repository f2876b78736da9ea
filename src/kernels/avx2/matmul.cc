// y = x w^T with AVX2. A vector is eight rows, half of a tile; several halves and tokens go side by
// side, so that enough independent sums are under way to hide the latency of one. The order of each
// sum is that of kernels.h.
#include <cstring>

#include "kernels/avx2/avx2.h"
#include "kernels/avx2/lanes.h"
#include "kernels/floats16/lanes.h"
#include "kernels/floats16/prefetch.h"
#include "kernels/scalar/scalar.h"

namespace nibble::kernels::avx2 {
namespace {

// Tokens whose sums for two tiles (16 KiB) stay in L1 beside the tiles' block.
constexpr int64_t kChunkTokens = 128;
// Tokens that one half of a tile is multiplied with before the next: their blocks stay in L1,
// however far apart they stand.
constexpr int64_t kGroupTokens = 8;
// Tiles that a lone token is multiplied with at once.
constexpr int kGroupTiles = 4;
constexpr int64_t kHalfRows = kTileRows / 2;

int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// Rows from token `block / n_blocks` and block `block % n_blocks` on.
template <typename T>
RoundedRows<T> From(const RoundedRows<T>& x, int64_t block) {
  return {x.values + block * kBlockK, x.scales + block, x.offsets + block};
}

// Where the tiles of a pass begin; half i is half i % 2 of tile i / 2.
template <int kTiles>
struct Tiles {
  Tiles(const WeightView& w, int64_t tile_idx) : scale_dtype(w.scale_dtype) {
    for (int i = 0; i < kTiles; ++i) {
      blocks[i] = w.tiles + (tile_idx + i) * w.tile_bytes;
      scales[i] = blocks[i] + w.scales_offset;
    }
  }

  // Eight codes, four bytes, of each row.
  __m256i Words(int i, int64_t block_idx, int64_t run) const {
    const std::byte* tile_words = blocks[i / 2] + block_idx * kInt4BlockBytes + run * 64;
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(tile_words + i % 2 * int64_t{32}));
  }

  __m256 Bf16(int i, int64_t block_idx, int64_t k) const {
    return WidenBf16(blocks[i / 2] + block_idx * kBf16BlockBytes + (2 * k + i % 2) * kHalfRows * 2);
  }

  // The block's scales, as they stand behind the codes.
  __m256 Scales(int i, int64_t block_idx) const {
    const int64_t at = (2 * block_idx + i % 2) * kHalfRows;
    if (scale_dtype == DType::kF32) {
      return _mm256_loadu_ps(reinterpret_cast<const float*>(scales[i / 2]) + at);
    }
    const std::byte* bits = scales[i / 2] + at * 2;
    if (scale_dtype == DType::kBF16) return WidenBf16(bits);
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits)));
  }

  const std::byte* blocks[kTiles];
  const std::byte* scales[kTiles];
  DType scale_dtype;
};

using Sums = float[kHalfRows];  // of one token and half

// The exponents that give the mantissa's bits 0, 4, 8 and 12 the value 1, and all bits of them.
constexpr int Exponent(int place) { return 127 + 23 - place; }
constexpr int kAllExponents = Exponent(0) | Exponent(4) | Exponent(8) | Exponent(12);

// A half's words of a run: bits 0 .. 15 and 16 .. 31, each below all exponents, so that one mask
// gives a power of two plus a code.
struct Run {
  Run() = default;
  explicit Run(__m256i words) {
    const __m256i exponents = _mm256_set1_epi32(kAllExponents << 23);
    parts[0] = _mm256_or_si256(words, exponents);
    parts[1] = _mm256_or_si256(_mm256_srli_epi32(words, 16), exponents);
  }

  // The codes of k = `k` of the run.
  __m256 Codes(int k) const {
    const int shift = k % 4 * 8 + k / 4 * 4;
    const int place = shift % 16;
    const __m256i mask = _mm256_set1_epi32(Exponent(place) << 23 | 15 << place);
    const __m256i bits = _mm256_and_si256(parts[shift / 16], mask);
    return _mm256_sub_ps(_mm256_castsi256_ps(bits),
                         _mm256_set1_ps(static_cast<float>((1 << (23 - place)) + 8)));
  }

  __m256i parts[2];
};

// Adds the products of block `block_idx` with kTokens tokens to `sums` [kTokens][2 * kTiles]. x:
// the first token's values of the block, x_stride apart.
template <int kTiles, int kTokens>
void AddBf16(const Tiles<kTiles>& tiles, int64_t block_idx, int64_t n_k, const float* x,
             int64_t x_stride, Sums* sums) {
  constexpr int kHalves = 2 * kTiles;
  __m256 part[kTokens][kHalves] = {};
  for (int64_t k = 0; k < n_k; ++k) {
    __m256 w[kHalves];
    for (int i = 0; i < kHalves; ++i) w[i] = tiles.Bf16(i, block_idx, k);
    for (int t = 0; t < kTokens; ++t) {
      const __m256 value = _mm256_set1_ps(x[t * x_stride + k]);
      for (int i = 0; i < kHalves; ++i) part[t][i] = _mm256_fmadd_ps(value, w[i], part[t][i]);
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int i = 0; i < kHalves; ++i) {
      float* sum = sums[t * kHalves + i];
      _mm256_store_ps(sum, _mm256_add_ps(_mm256_load_ps(sum), part[t][i]));
    }
  }
}

template <int kTiles, int kTokens>
void AddInt4(const Tiles<kTiles>& tiles, int64_t block_idx, const float* x, int64_t x_stride,
             Sums* sums) {
  constexpr int kHalves = 2 * kTiles;
  __m256 part[kTokens][kHalves] = {};
  for (int run = 0; run < 4; ++run, x += 8) {
    Run words[kHalves];
    for (int i = 0; i < kHalves; ++i) words[i] = Run(tiles.Words(i, block_idx, run));
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      __m256 w[kHalves];
      for (int i = 0; i < kHalves; ++i) w[i] = words[i].Codes(k);
      for (int t = 0; t < kTokens; ++t) {
        const __m256 value = _mm256_set1_ps(x[t * x_stride + k]);
        for (int i = 0; i < kHalves; ++i) part[t][i] = _mm256_fmadd_ps(value, w[i], part[t][i]);
      }
    }
  }
  for (int i = 0; i < kHalves; ++i) {
    const __m256 scale = tiles.Scales(i, block_idx);
    for (int t = 0; t < kTokens; ++t) {
      float* sum = sums[t * kHalves + i];
      _mm256_store_ps(sum, _mm256_fmadd_ps(part[t][i], scale, _mm256_load_ps(sum)));
    }
  }
}

// The codes (+ 8) of a block, each vector four consecutive k of eight rows, and its scales.
template <int kTiles>
struct Int4Block {
  Int4Block(const Tiles<kTiles>& tiles, int64_t block_idx) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int i = 0; i < 2 * kTiles; ++i) {
      for (int run = 0; run < 4; ++run) {
        const __m256i words = tiles.Words(i, block_idx, run);
        codes[i][2 * run] = _mm256_and_si256(words, low);
        codes[i][2 * run + 1] = _mm256_and_si256(_mm256_srli_epi16(words, 4), low);
      }
      scales[i] = tiles.Scales(i, block_idx);
    }
  }

  __m256i codes[2 * kTiles][8];
  __m256 scales[2 * kTiles];
};

// The four bytes at `at` in every lane.
__m256i Broadcast(const void* at) {
  int32_t four = 0;
  std::memcpy(&four, at, sizeof four);
  return _mm256_set1_epi32(four);
}

// The products of a block's codes, [8 quads], with one token's values, added by row. Pairs of
// products, and the eight pairs that a lane adds, fit into int16: 16 * 15 * 127 < 2^15.
__m256i Products(const __m256i* codes, const int8_t* values) {
  __m256i part = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int64_t quad = 0; quad < 8; ++quad) {
    const __m256i pairs = _mm256_maddubs_epi16(codes[quad], Broadcast(values + quad * 4));
    part = quad == 0 ? pairs : _mm256_add_epi16(part, pairs);
  }
  return _mm256_madd_epi16(part, _mm256_set1_epi16(1));
}

// What widens bytes `first` and `first` + 1 of each lane to 16 bits by a shuffle.
__m256i Spread(int first) {
  const auto zero_between = static_cast<int>(0x80008000);  // a byte with the highest bit gives zero
  const auto lane = [&](int idx) {
    return zero_between | (4 * idx + first + 1) << 16 | (4 * idx + first);
  };
  return _mm256_broadcastsi128_si256(_mm_setr_epi32(lane(0), lane(1), lane(2), lane(3)));
}

__m256i Products(const __m256i* codes, const int16_t* values) {
  const __m256i spreads[2] = {Spread(0), Spread(2)};
  __m256i part = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int64_t quad = 0; quad < 8; ++quad) {
    for (int64_t pair = 0; pair < 2; ++pair) {
      const __m256i two = _mm256_shuffle_epi8(codes[quad], spreads[pair]);
      const __m256i both = _mm256_madd_epi16(two, Broadcast(values + quad * 4 + pair * 2));
      part = _mm256_add_epi32(part, both);
    }
  }
  return part;
}

// Adds the products of half i with n_tokens tokens. x: the first token's block, the next token's
// n_blocks further on.
template <int kTiles, typename T>
void AddRounded(const Int4Block<kTiles>& block, int i, const RoundedRows<T>& x, int64_t n_blocks,
                int64_t n_tokens, Sums* sums) {
  for (int64_t t = 0; t < n_tokens; ++t) {
    const __m256i whole =
        _mm256_add_epi32(Products(block.codes[i], x.values + t * n_blocks * kBlockK),
                         _mm256_set1_epi32(x.offsets[t * n_blocks]));
    const __m256 product =
        _mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(x.scales[t * n_blocks]));
    float* sum = sums[t * 2 * kTiles + i];
    _mm256_store_ps(sum, _mm256_fmadd_ps(product, block.scales[i], _mm256_load_ps(sum)));
  }
}

// Stores the sums of kTiles tiles into the rows that exist.
template <int kTiles>
void Store(const Sums* sums, const WeightView& w, int64_t tile_idx, int64_t n_tokens, float* y) {
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int i = 0; i < kTiles; ++i) {
      const int64_t first_row = (tile_idx + i) * kTileRows;
      floats16::StoreFirst(Floats::Load(sums[(t * kTiles + i) * 2]), y + t * w.n_rows + first_row,
                           w.n_rows - first_row);
    }
  }
}

// One pass over kTiles tiles for up to kChunkTokens tokens, kTokens of them at once: n_tokens is a
// multiple of it.
template <int kTiles, int kTokens>
void PassFloat(const WeightView& w, int64_t tile_idx, const float* x, int64_t n_tokens, float* y) {
  constexpr int64_t kHalves = int64_t{2} * kTiles;
  alignas(64) Sums sums[(kTokens == 1 ? 1 : kChunkTokens) * kHalves];
  std::memset(sums, 0, sizeof(Sums) * static_cast<size_t>(n_tokens * kHalves));
  const Tiles<kTiles> tiles(w, tile_idx);
  const int64_t stride = w.n_columns;
  for (int64_t block_idx = 0; block_idx < w.n_blocks; ++block_idx) {
    floats16::PrefetchNextTiles(w, tile_idx, kTiles, block_idx);
    const int64_t k = block_idx * kBlockK;
    for (int64_t t = 0; t < n_tokens; t += kTokens) {
      const float* values = x + t * stride + k;
      if (w.format == WeightFormat::kInt4) {
        AddInt4<kTiles, kTokens>(tiles, block_idx, values, stride, sums + t * kHalves);
      } else {
        AddBf16<kTiles, kTokens>(tiles, block_idx, Min(kBlockK, stride - k), values, stride,
                                 sums + t * kHalves);
      }
    }
  }
  Store<kTiles>(sums, w, tile_idx, n_tokens, y);
}

// Up to kGroupTiles tiles and kChunkTokens tokens: one tile with four tokens at a time, what is
// left with one token and all tiles.
void GroupFloat(const WeightView& w, int64_t tile_begin, int64_t tile_end, const float* x,
                int64_t n_tokens, float* y) {
  const int64_t n_fours = n_tokens / 4 * 4;
  if (n_fours > 0) {
    for (int64_t tile_idx = tile_begin; tile_idx < tile_end; ++tile_idx) {
      PassFloat<1, 4>(w, tile_idx, x, n_fours, y);
    }
  }
  for (int64_t t = n_fours; t < n_tokens; ++t) {
    const float* row = x + t * w.n_columns;
    float* out = y + t * w.n_rows;
    if (tile_end - tile_begin == kGroupTiles) {
      PassFloat<kGroupTiles, 1>(w, tile_begin, row, 1, out);
      continue;
    }
    for (int64_t tile_idx = tile_begin; tile_idx < tile_end; ++tile_idx) {
      PassFloat<1, 1>(w, tile_idx, row, 1, out);
    }
  }
}

template <int kTiles, typename T>
void PassRounded(const WeightView& w, int64_t tile_idx, const RoundedRows<T>& x, int64_t n_tokens,
                 float* y) {
  constexpr int64_t kHalves = int64_t{2} * kTiles;
  alignas(64) Sums sums[kChunkTokens * kHalves];
  std::memset(sums, 0, sizeof(Sums) * static_cast<size_t>(n_tokens * kHalves));
  const Tiles<kTiles> tiles(w, tile_idx);
  const int64_t n_blocks = w.n_blocks;
  for (int64_t block_idx = 0; block_idx < n_blocks; ++block_idx) {
    floats16::PrefetchNextTiles(w, tile_idx, kTiles, block_idx);
    const Int4Block<kTiles> block(tiles, block_idx);
    for (int64_t t = 0; t < n_tokens; t += kGroupTokens) {
      const int64_t n_group = Min(kGroupTokens, n_tokens - t);
      const RoundedRows<T> rows = From(x, t * n_blocks + block_idx);
      for (int i = 0; i < kHalves; ++i) {
        AddRounded(block, i, rows, n_blocks, n_group, sums + t * kHalves);
      }
    }
  }
  Store<kTiles>(sums, w, tile_idx, n_tokens, y);
}

template <typename T>
void MultiplyRounded(const WeightView& w, int64_t tile_begin, int64_t tile_end,
                     const RoundedRows<T>& x, int64_t n_tokens, float* y) {
  if (n_tokens == 1) {  // memory is the limit, and more streams of codes get more of it
    int64_t tile_idx = tile_begin;
    for (; tile_idx + kGroupTiles <= tile_end; tile_idx += kGroupTiles) {
      PassRounded<kGroupTiles>(w, tile_idx, x, 1, y);
    }
    for (; tile_idx < tile_end; ++tile_idx) PassRounded<1>(w, tile_idx, x, 1, y);
    return;
  }
  for (int64_t first = 0; first < n_tokens; first += kChunkTokens) {
    const int64_t n_chunk = Min(kChunkTokens, n_tokens - first);
    const RoundedRows<T> rows = From(x, first * w.n_blocks);
    float* out = y + first * w.n_rows;
    int64_t tile_idx = tile_begin;
    for (; tile_idx + 2 <= tile_end; tile_idx += 2) PassRounded<2>(w, tile_idx, rows, n_chunk, out);
    if (tile_idx < tile_end) PassRounded<1>(w, tile_idx, rows, n_chunk, out);
  }
}

}  // namespace

void Matmul(const WeightView& w, int64_t tile_begin, int64_t tile_end, const float* x,
            int64_t n_tokens, float* y) {
  if (w.format != WeightFormat::kInt4 && w.format != WeightFormat::kBf16) {
    return scalar::Matmul(w, tile_begin, tile_end, x, n_tokens, y);  // Q6_K heads, float routers
  }
  for (int64_t first = 0; first < n_tokens; first += kChunkTokens) {
    for (int64_t tile_idx = tile_begin; tile_idx < tile_end; tile_idx += kGroupTiles) {
      GroupFloat(w, tile_idx, Min(tile_idx + kGroupTiles, tile_end), x + first * w.n_columns,
                 Min(kChunkTokens, n_tokens - first), y + first * w.n_rows);
    }
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

}  // namespace nibble::kernels::avx2
