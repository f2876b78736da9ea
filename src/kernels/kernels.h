// The one contract of all kernels: what each op computes, on which shapes, and how exactly.
//
// Every instruction set fills one KernelTable; scalar/ is the truth that the others are compared
// with. All data is float32 unless said otherwise; no op allocates, and none splits work over
// threads: ops take ranges, and callers split them. Ops never read or write a token's values while
// computing another token's, and the order of every sum is written down here, so a result does not
// depend on batch, threads or instruction set. "fma" is a fused multiply-add, rounded once, where
// it is written so; everywhere else products and sums round one by one.
//
// This header holds plain data only, no inline function: files compiled for newer CPUs include it,
// and what they emit must not be picked by the linker for older ones.
//
// Each op is EXACT (a defined sequence of IEEE operations without a sum: equal to memcmp) or
// BOUNDED (float sums or exponentials: the bound against real arithmetic stands beside it;
// instruction sets still agree with scalar/ to memcmp, because the order is fixed). u = 2^-24 is
// the unit roundoff and g(n) = n u / (1 - n u) the usual bound of n roundings. "Lane sum" of n
// values: value i goes into lane i % 16, in order, then lanes l and l + 8, l + 4, l + 2, l + 1 are
// added: g(ceil(n / 16) + 4) relative to the sum of sizes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace nibble::kernels {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kBlockK = 32;
inline constexpr int64_t kBf16BlockBytes = kBlockK * kTileRows * 2;
inline constexpr int64_t kInt4BlockBytes = kBlockK * kTileRows / 2;
inline constexpr int64_t kInt8BlockBytes = 2 * kTileRows * 4 + kBlockK * kTileRows;
inline constexpr int64_t kInt8ChannelBlockBytes = kBlockK * kTileRows;
inline constexpr int64_t kFloat32BlockBytes = kBlockK * kTileRows * 4;
// Longest row of an int8-channel matrix: a sum of so many products of two codes fits into int32,
// also of a code that stands 128 higher.
inline constexpr int64_t kMaxInt8Columns = (int64_t{1} << 31) / (int64_t{255} * 128) - 1;

enum class WeightFormat : uint8_t {
  kBf16,
  kInt4,         // code * scale of a row's 32 values of k
  kInt8,         // code * scale of a row's 16 values of k (Q6_K)
  kInt8Channel,  // code * scale of the row
  kFloat32,
};

// A weight matrix [N, K] in the order in which matmul reads it (see PackedWeight, which owns it).
//
// Rows are cut into tiles of 16 and K into blocks of 32, because lanes are output rows. Missing
// rows of the last tile and missing k of the last block are zero. A tile holds its blocks in order:
//   bf16 block (1024 bytes): uint16 [32 k][16 rows]
//   int4 block (256 bytes):  uint32 [4 runs of 8 k][16 rows]; byte b of a row's word holds code + 8
//                            of its run's k = b in the low nibble and of k = b + 4 in the high one,
//                            so that one mask gives four consecutive k, as integer dot products
//                            take them
//   int8 block (640 bytes):  float scale [2 halves of k][16 rows], then int8 code [32 k][16 rows]
//   int8-channel block (512 bytes): int8 code [8 runs of 4 k][16 rows][4 k]
//   f32 block (2048 bytes):  float [32 k][16 rows]
// and, for int4, the scales of all blocks after the last one, [n_blocks][16 rows], as the file has
// them: kernels widen them as they go, so that a weight costs 4.5 bits with 16-bit scales.
// An int4 weight's value is code * scale in float32, which is exact for bf16 and fp16 scales (4
// and 11 significant bits fit into 24), and is not rounded to bf16 as bf16 readers do. Q6_K's
// scales are exact in float32; its values, code * scale, are those before the rounding to float32
// that ggml's own reader does.
struct WeightView {
  WeightFormat format = WeightFormat::kBf16;
  DType scale_dtype = DType::kF16;    // int4: BF16, F16 or F32
  int64_t n_rows = 0;                 // N
  int64_t n_columns = 0;              // K
  int64_t n_tiles = 0;                // ceil(N / 16)
  int64_t n_blocks = 0;               // ceil(K / 32)
  int64_t tile_bytes = 0;             // a multiple of 64
  int64_t scales_offset = 0;          // of a tile's scales, in the tile
  const std::byte* tiles = nullptr;   // 64-byte aligned
  const float* row_scales = nullptr;  // kInt8Channel: [n_tiles * 16]
};

// Positions of one KV page; page i of a sequence holds positions [16 i, 16 i + 16).
inline constexpr int64_t kPageTokens = 16;
// head_dim must be a multiple of this.
inline constexpr int64_t kHeadDimMultiple = 16;

enum class KvFormat : uint8_t { kF32, kBf16, kInt8 };

// One token's query heads that share a KV head, against that head's keys and values in pages. A
// head's K in a page is [C, kPageTokens], its V [kPageTokens, C], of the format's type; int8 is
// followed by float scales [kPageTokens], and a key's or value's element is int8 * scale of its
// position. K and V begin at multiples of 64 bytes.
struct AttentionCall {
  const float* q = nullptr;  // [n_queries, C], normed and rotated
  int64_t n_queries = 0;
  int64_t head_dim = 0;  // C
  KvFormat kv_format = KvFormat::kF32;
  const std::byte* const* pages = nullptr;  // pages[i]: page first_page + i
  int64_t first_page = 0;
  int64_t k_offset = 0;  // in a page, in bytes
  int64_t v_offset = 0;
  int64_t begin = 0;  // positions seen: [begin, end)
  int64_t end = 0;
  float* scores = nullptr;  // scratch: [n_queries, kPageTokens for each page that they touch]
  float* out = nullptr;     // [n_queries, C]
};

// Below it P / max |x|, P being 127 or 32767, would overflow.
inline constexpr float kLeastPeak = 0x1p-100f;

// Activations rounded to whole numbers of type T, in the caller's memory. K is padded with zeros to
// n_blocks = ceil(K / 32) blocks.
template <typename T>
struct RoundedRows {
  T* values = nullptr;         // [T, n_blocks * 32], within the peak: 127, or 32767
  float* scales = nullptr;     // [T, n_blocks]
  int32_t* offsets = nullptr;  // [T, n_blocks]: -8 * sum of the block's values, what a product with
                               // code + 8 is off by
};
using Int8Rows = RoundedRows<int8_t>;
using Int16Rows = RoundedRows<int16_t>;

struct KernelTable {
  const char* name;

  // y[t, n] = sum over k of x[t, k] w[n, k] for all tokens and the rows n of tiles [tile_begin,
  // tile_end). x: [n_tokens, K], y: [n_tokens, N], row-major. K runs in blocks of 32: within a
  // block, sum = fma(x, w, sum) in order from zero, w being the value (bf16, f32) or the code
  // (int4, int8); blocks follow in order from zero: total + sum (bf16, f32), fma(sum, scale, total)
  // (int4, and int8, whose blocks are two of 16). Not for kInt8Channel. BOUNDED: |error| <= g(33 +
  // ceil(K / 32)) * sum over k of |x w|: at most 32 roundings in the block and one per block; int8:
  // g(17 + ceil(K / 16)).
  void (*matmul)(const WeightView& w, int64_t tile_begin, int64_t tile_end, const float* x,
                 int64_t n_tokens, float* y);

  // Rounds rows of activations, 32 values a scale: with the type's peak P, 127 or 32767, scale =
  // max |x| / P, value = x * (P / max |x|) to the nearest integer, ties to even; a maximum below
  // kLeastPeak counts as 0 and gives zeros and scale 0; NaN gives -P. x: [n_rows, K]; see
  // RoundedRows for what is written, padding included. EXACT.
  void (*quantize_int8)(const float* x, int64_t n_rows, int64_t n_columns, const Int8Rows& rows);
  void (*quantize_int16)(const float* x, int64_t n_rows, int64_t n_columns, const Int16Rows& rows);

  // As matmul, with rounded activations and an int4 weight. A block's sum of code * value is exact
  // in int32; blocks follow in order from zero: total = fma(float(sum) * x_scale, w_scale, total).
  // BOUNDED against real arithmetic on the rounded activations: |error| <= g(2 + ceil(K / 32)) *
  // sum over blocks of |sum * x_scale * w_scale| (float(sum) is exact: |sum| <= 32 * 8 * 32767 <
  // 2^24).
  void (*matmul_int8)(const WeightView& w, int64_t tile_begin, int64_t tile_end, const Int8Rows& x,
                      int64_t n_tokens, float* y);
  void (*matmul_int16)(const WeightView& w, int64_t tile_begin, int64_t tile_end,
                       const Int16Rows& x, int64_t n_tokens, float* y);

  // The inputs of an int8-channel matrix, as readers of that format take them: each of n_rows rows
  // of x gets scale = max |x| / 127 (1 where that is 0) and codes = x / scale, rounded half to
  // even, -127 .. 127; NaN gives -127. codes: [n_rows, n_columns padded with zeros to a multiple of
  // 32]. EXACT.
  void (*quantize_rows)(const float* x, int64_t n_rows, int64_t n_columns, int8_t* codes,
                        float* scales);

  // y[t, n] = float(sum over k of x[t, k] w[n, k]) * x_scales[t] * w.row_scales[n] for all tokens
  // and the rows n of tiles [tile_begin, tile_end); w in kInt8Channel, K <= kMaxInt8Columns, the
  // sum in int32, x as quantize_rows writes it. EXACT.
  void (*matmul_int8_channel)(const WeightView& w, int64_t tile_begin, int64_t tile_end,
                              const int8_t* x, const float* x_scales, int64_t n_tokens, float* y);

  // y = x * (1 / sqrt(mean(x^2) + eps)) * weight for each of n_rows rows of `width`; weight may be
  // null (no multiplication). mean: lane sum of squares / width. y may be x.
  // BOUNDED: relative error <= g(ceil(width / 16) + 12) / 2 + g(4) of each value: the sum of
  // squares has only positive terms and enters through a square root, then 4 roundings follow.
  void (*rms_norm)(const float* x, const float* weight, int64_t n_rows, int64_t width, float eps,
                   float* y);

  // RoPE of one token's heads in place; x: [n_heads, C]; pairs j < n_pairs of (j, j + C / 2) turn:
  // a' = a cos_j - b sin_j, b' = b cos_j + a sin_j; the rest stays. EXACT.
  void (*rotate)(float* x, int64_t n_heads, int64_t head_dim, const float* cos, const float* sin,
                 int64_t n_pairs);

  // y[i] = gelu_tanh(gate[i]) * up[i]; gelu_tanh(x) = x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715
  // x^3))), which is 0.5 x (1 + tanh(...)) without its cancellation. y may be gate or up.
  // BOUNDED: with z the exponent's argument, relative error <= g(10) + 6 u |z| where z <= 88;
  // beyond, the true gelu is below 2^-126 |x| and the result is 0 or that small.
  void (*gelu_mul)(const float* gate, const float* up, int64_t n, float* y);

  // x[i] = cap * tanh(x[i] / cap), in place. BOUNDED: relative error <= 8 u (tanh by polynomial
  // below 0.625, by exp above: 4 u, checked over all of [2^-12, 16] in the test; quotient and
  // product 1 u each, and tanh's argument error of 1 u passes at most once).
  void (*softcap)(float* x, int64_t n, float cap);

  // Softmax in place: exp(x - max) / lane sum. BOUNDED: relative error <= g(ceil(n / 16) + 14) + 2
  // u |x - max|.
  void (*softmax)(float* x, int64_t n);

  // out = softmax over positions of (q . k), times v; scale 1. A score is summed over C in blocks
  // of 32, fma in order from zero in each, blocks added in order from zero; int8 scores are then
  // multiplied by the key's scale. Exponentials are taken of score - max and summed by lane =
  // position % 16; out adds, page by page in order, the page's sum of exp * v (int8: of (exp * v's
  // scale) * v), fma in order of positions, and divides by the sum of exponentials last. Positions
  // outside [begin, end) do not take part, whatever the pages hold there. BOUNDED: with s the
  // largest score's error bound g(34 + C / 32) * sum |q k|, each exponential is off by a factor
  // within exp(2 s) (1 + g(8) + 2 u |score - max|), and out by twice that plus g(18 + pages) of sum
  // p |v|.
  void (*attention)(const AttentionCall& call);

  // y[i] = float(row[i]) * scale: a table's row of n bf16 values, of any alignment. EXACT.
  void (*gather_bf16)(const std::byte* row, int64_t n, float scale, float* y);

  // y[i] = (code[i] * group scale) * scale: a table's row in the layout of formats/int4_group32.h,
  // n a multiple of 32, scale_dtype BF16, F16 or F32. EXACT.
  void (*gather_int4)(const std::byte* packed, const std::byte* scales, DType scale_dtype,
                      int64_t n, float scale, float* y);
};

}  // namespace nibble::kernels
