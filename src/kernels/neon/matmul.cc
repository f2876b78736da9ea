// y = x w^T with NEON. A vector is four rows, a quarter of a tile; four tokens go side by side, so
// that enough independent sums are under way to hide the latency of one. The order of each sum is
// that of kernels.h.
#include <cstring>

#include "kernels/floats16/lanes.h"
#include "kernels/floats16/prefetch.h"
#include "kernels/neon/lanes.h"
#include "kernels/neon/neon.h"
#include "kernels/scalar/scalar.h"

namespace nibble::kernels::neon {
namespace {

// Tokens whose sums for a tile (8 KiB) stay in L1 beside the tile's block.
constexpr int64_t kChunkTokens = 128;

int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// Rows from token `block / n_blocks` and block `block % n_blocks` on.
template <typename T>
RoundedRows<T> From(const RoundedRows<T>& x, int64_t block) {
  return {x.values + block * kBlockK, x.scales + block, x.offsets + block};
}

using Sums = float[kTileRows];  // of one token

// A block's scales, as they stand behind the codes.
Floats Scales(const WeightView& w, const std::byte* tile, int64_t block_idx) {
  const std::byte* scales = tile + w.scales_offset;
  const int64_t at = block_idx * kTileRows;
  if (w.scale_dtype == DType::kF32) return Floats::Load(scales + at * 4);
  if (w.scale_dtype == DType::kBF16) return Floats::LoadBf16(scales + at * 2);
  const auto* halves = reinterpret_cast<const float16_t*>(scales + at * 2);
  Floats values;
  for (int i = 0; i < 4; ++i) values.part[i] = vcvt_f32_f16(vld1_f16(halves + 4 * i));
  return values;
}

// Adds the products of a block with kTokens tokens to `sums`. x: the first token's values of the
// block, x_stride apart.
template <int kTokens>
void AddBf16(const std::byte* block, int64_t n_k, const float* x, int64_t x_stride, Sums* sums) {
  Floats part[kTokens];
  for (int t = 0; t < kTokens; ++t) part[t] = Floats::All(0.0f);
  for (int64_t k = 0; k < n_k; ++k) {
    const Floats w = Floats::LoadBf16(block + k * kTileRows * 2);
    for (int t = 0; t < kTokens; ++t) {
      part[t] = Fma(Floats::All(x[t * x_stride + k]), w, part[t]);
    }
  }
  for (int t = 0; t < kTokens; ++t) (Floats::Load(sums[t]) + part[t]).Store(sums[t]);
}

// The codes of k = `k` of a run of eight.
Floats Codes(const std::byte* run, int k) {
  const int32x4_t down = vdupq_n_s32(-(k % 4 * 8 + k / 4 * 4));
  const auto* words = reinterpret_cast<const uint32_t*>(run);
  Floats codes;
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t code = vandq_u32(vshlq_u32(vld1q_u32(words + 4 * i), down), vdupq_n_u32(15));
    codes.part[i] = vcvtq_f32_s32(vsubq_s32(vreinterpretq_s32_u32(code), vdupq_n_s32(8)));
  }
  return codes;
}

template <int kTokens>
void AddInt4(const std::byte* block, const Floats& scales, const float* x, int64_t x_stride,
             Sums* sums) {
  Floats part[kTokens];
  for (int t = 0; t < kTokens; ++t) part[t] = Floats::All(0.0f);
  for (int run = 0; run < 4; ++run, x += 8) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      const Floats w = Codes(block + run * 64, k);
      for (int t = 0; t < kTokens; ++t) {
        part[t] = Fma(Floats::All(x[t * x_stride + k]), w, part[t]);
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) Fma(part[t], scales, Floats::Load(sums[t])).Store(sums[t]);
}

// The codes of a block, each vector four consecutive k of four rows, and its scales.
struct Int4Block {
  Int4Block(const WeightView& w, const std::byte* tile, int64_t block_idx)
      : scales(Scales(w, tile, block_idx)) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(tile + block_idx * kInt4BlockBytes);
    const int8x16_t eight = vdupq_n_s8(8);
    for (int i = 0; i < 16; ++i) {
      const uint8x16_t both = vld1q_u8(bytes + i * 16);
      const uint8x16_t low = vandq_u8(both, vdupq_n_u8(15));
      codes[i / 4 * 2][i % 4] = vsubq_s8(vreinterpretq_s8_u8(low), eight);
      codes[i / 4 * 2 + 1][i % 4] = vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8(both, 4)), eight);
    }
  }

  int8x16_t codes[8][4];  // [4 k][4 rows]
  Floats scales;
};

// The products of a block with kTokens tokens' values, n_values apart, added by row.
template <int kTokens>
void Products(const Int4Block& block, const int8_t* x, int64_t n_values, int32x4_t (*part)[4]) {
  for (int half = 0; half < 2; ++half) {
    int8x16_t values[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      values[t] = vld1q_s8(x + t * n_values + half * 16);
    }
    const auto add = [&]<int kQuad>() {
      for (int i = 0; i < 4; ++i) {
        const int8x16_t codes = block.codes[half * 4 + kQuad][i];
        for (int t = 0; t < kTokens; ++t) {
          part[t][i] = vdotq_laneq_s32(part[t][i], codes, values[t], kQuad);
        }
      }
    };
    add.template operator()<0>();
    add.template operator()<1>();
    add.template operator()<2>();
    add.template operator()<3>();
  }
}

template <int kTokens>
void Products(const Int4Block& block, const int16_t* x, int64_t n_values, int32x4_t (*part)[4]) {
  for (int i = 0; i < 4; ++i) {
    int32x4_t rows[kTokens][4] = {};  // a row's four k side by side
    for (int quad = 0; quad < 8; ++quad) {
      const int16x8_t low = vmovl_s8(vget_low_s8(block.codes[quad][i]));
      const int16x8_t high = vmovl_s8(vget_high_s8(block.codes[quad][i]));
      for (int t = 0; t < kTokens; ++t) {
        const int16x4_t four = vld1_s16(x + t * n_values + quad * 4);
        rows[t][0] = vmlal_s16(rows[t][0], vget_low_s16(low), four);
        rows[t][1] = vmlal_s16(rows[t][1], vget_high_s16(low), four);
        rows[t][2] = vmlal_s16(rows[t][2], vget_low_s16(high), four);
        rows[t][3] = vmlal_s16(rows[t][3], vget_high_s16(high), four);
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      part[t][i] =
          vpaddq_s32(vpaddq_s32(rows[t][0], rows[t][1]), vpaddq_s32(rows[t][2], rows[t][3]));
    }
  }
}

// x: the first token's block, the next token's n_blocks further on.
template <int kTokens, typename T>
void AddRounded(const Int4Block& block, const RoundedRows<T>& x, int64_t n_blocks, Sums* sums) {
  int32x4_t part[kTokens][4] = {};
  Products<kTokens>(block, x.values, n_blocks * kBlockK, part);
  for (int t = 0; t < kTokens; ++t) {
    Floats sum;
    for (int i = 0; i < 4; ++i) sum.part[i] = vcvtq_f32_s32(part[t][i]);
    const Floats product = sum * Floats::All(x.scales[t * n_blocks]);
    Fma(product, block.scales, Floats::Load(sums[t])).Store(sums[t]);
  }
}

// A tile's sums for up to kChunkTokens tokens: `add_block` of a block gives what adds its products
// with <kTokens> tokens from token t on.
template <typename AddBlock>
void Pass(const WeightView& w, int64_t tile_idx, int64_t n_tokens, float* y,
          const AddBlock& add_block) {
  Sums sums[kChunkTokens];
  std::memset(sums, 0, sizeof(Sums) * static_cast<size_t>(n_tokens));
  const std::byte* tile = w.tiles + tile_idx * w.tile_bytes;
  for (int64_t block_idx = 0; block_idx < w.n_blocks; ++block_idx) {
    floats16::PrefetchNextTiles(w, tile_idx, 1, block_idx);
    add_block(tile, block_idx, [&](const auto& add) {
      int64_t t = 0;
      for (; t + 4 <= n_tokens; t += 4) add.template operator()<4>(t, sums + t);
      for (; t < n_tokens; ++t) add.template operator()<1>(t, sums + t);
    });
  }
  const int64_t first_row = tile_idx * kTileRows;
  for (int64_t t = 0; t < n_tokens; ++t) {
    floats16::StoreFirst(Floats::Load(sums[t]), y + t * w.n_rows + first_row, w.n_rows - first_row);
  }
}

void PassInt4(const WeightView& w, int64_t tile_idx, const float* x, int64_t n_tokens, float* y) {
  const auto add_block = [&](const std::byte* tile, int64_t block_idx, const auto& for_tokens) {
    const Floats scales = Scales(w, tile, block_idx);
    for_tokens([&]<int kTokens>(int64_t t, Sums* sums) {
      AddInt4<kTokens>(tile + block_idx * kInt4BlockBytes, scales,
                       x + t * w.n_columns + block_idx * kBlockK, w.n_columns, sums);
    });
  };
  Pass(w, tile_idx, n_tokens, y, add_block);
}

void PassBf16(const WeightView& w, int64_t tile_idx, const float* x, int64_t n_tokens, float* y) {
  const auto add_block = [&](const std::byte* tile, int64_t block_idx, const auto& for_tokens) {
    const int64_t k = block_idx * kBlockK;
    for_tokens([&]<int kTokens>(int64_t t, Sums* sums) {
      AddBf16<kTokens>(tile + block_idx * kBf16BlockBytes, Min(kBlockK, w.n_columns - k),
                       x + t * w.n_columns + k, w.n_columns, sums);
    });
  };
  Pass(w, tile_idx, n_tokens, y, add_block);
}

template <typename T>
void PassRounded(const WeightView& w, int64_t tile_idx, const RoundedRows<T>& x, int64_t n_tokens,
                 float* y) {
  const auto add_block = [&](const std::byte* tile, int64_t block_idx, const auto& for_tokens) {
    const Int4Block block(w, tile, block_idx);
    for_tokens([&]<int kTokens>(int64_t t, Sums* sums) {
      AddRounded<kTokens>(block, From(x, t * w.n_blocks + block_idx), w.n_blocks, sums);
    });
  };
  Pass(w, tile_idx, n_tokens, y, add_block);
}

template <typename T>
void MultiplyRounded(const WeightView& w, int64_t tile_begin, int64_t tile_end,
                     const RoundedRows<T>& x, int64_t n_tokens, float* y) {
  for (int64_t first = 0; first < n_tokens; first += kChunkTokens) {
    for (int64_t tile_idx = tile_begin; tile_idx < tile_end; ++tile_idx) {
      PassRounded(w, tile_idx, From(x, first * w.n_blocks), Min(kChunkTokens, n_tokens - first),
                  y + first * w.n_rows);
    }
  }
}

}  // namespace

void Matmul(const WeightView& w, int64_t tile_begin, int64_t tile_end, const float* x,
            int64_t n_tokens, float* y) {
  if (w.format != WeightFormat::kInt4 && w.format != WeightFormat::kBf16) {
    return scalar::Matmul(w, tile_begin, tile_end, x, n_tokens, y);  // Q6_K heads, float routers
  }
  const auto pass = w.format == WeightFormat::kInt4 ? PassInt4 : PassBf16;
  for (int64_t first = 0; first < n_tokens; first += kChunkTokens) {
    for (int64_t tile_idx = tile_begin; tile_idx < tile_end; ++tile_idx) {
      pass(w, tile_idx, x + first * w.n_columns, Min(kChunkTokens, n_tokens - first),
           y + first * w.n_rows);
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

}  // namespace nibble::kernels::neon
