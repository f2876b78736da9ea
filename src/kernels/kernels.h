// The one contract of all kernels: what each op computes, on which shapes, and how exactly.
//
// Every instruction set fills one KernelTable; scalar/ is the truth that the others are compared
// with. All data is float32 unless said otherwise; no op allocates, and none splits work over
// threads: ops take ranges, and callers split them. Ops never read or write a token's values while
// computing another token's, and the order of every sum is written down here, so a result does not
// depend on batch, threads or instruction set. Products and sums round one by one (no fused
// multiply-add).
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
#include <string_view>

#include "base/dtype.h"
#include "base/result.h"
#include "kernels/packed_weight.h"

namespace nibble::kernels {

// Positions of one KV page; page i of a sequence holds positions [16 i, 16 i + 16).
inline constexpr int64_t kPageTokens = 16;
// head_dim must be a multiple of this.
inline constexpr int64_t kHeadDimMultiple = 16;

// Longest row of an int8 matrix: a sum of so many products of two codes fits into int32.
inline constexpr int64_t kMaxInt8Columns = (int64_t{1} << 31) / (128 * 128) - 1;

// One token's query heads that share a KV head, against that head's keys and values in pages.
struct AttentionCall {
  const float* q = nullptr;  // [n_queries, C], normed and rotated
  int64_t n_queries = 0;
  int64_t head_dim = 0;                 // C
  const float* const* pages = nullptr;  // pages[i]: page first_page + i
  int64_t first_page = 0;
  int64_t k_offset = 0;  // in a page, in floats: this layer's and head's K, [C, kPageTokens]
  int64_t v_offset = 0;  // likewise V, [kPageTokens, C]
  int64_t begin = 0;     // positions seen: [begin, end)
  int64_t end = 0;
  float* scores = nullptr;  // scratch: kPageTokens floats for each page that [begin, end) touches
  float* out = nullptr;     // [n_queries, C]
};

struct KernelTable {
  std::string_view name;

  // y[t, n] = sum over k of x[t, k] w[n, k] for all tokens and the rows n of tiles [tile_begin,
  // tile_end). x: [n_tokens, K], y: [n_tokens, N], row-major. K runs in blocks of 32: a block's
  // products x * w (int4, int8: x * code) are summed in order from zero, an int4 block's sum is
  // then multiplied by its scale, and block sums are added in order from zero. An int8 block is two
  // of 16, each with its scale. BOUNDED: |error| <= g(34 + ceil(K / 32)) * sum over k of |x w|: one
  // rounding of the product, at most 32 in the block, one of the scale, one per block. int8: g(18 +
  // ceil(K / 16)).
  void (*matmul)(const PackedWeight& w, int64_t tile_begin, int64_t tile_end, const float* x,
                 int64_t n_tokens, float* y);

  // The inputs of an int8-channel matrix, as readers of that format take them: each of n_rows rows
  // of x gets scale = largest magnitude / 127 (1 for a row of zeros) and codes = x / scale, rounded
  // half to even, -127 .. 127. EXACT.
  void (*quantize_rows)(const float* x, int64_t n_rows, int64_t width, int8_t* codes,
                        float* scales);

  // y[t, n] = float(sum over k of x[t, k] w[n, k]) * x_scales[t] * w.row_scales()[n] for all tokens
  // and the rows n of tiles [tile_begin, tile_end); w in kInt8Channel, K <= kMaxInt8Columns, the
  // sum in int32. EXACT.
  void (*matmul_int8)(const PackedWeight& w, int64_t tile_begin, int64_t tile_end, const int8_t* x,
                      const float* x_scales, int64_t n_tokens, float* y);

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
  // of 32 as in matmul; exponentials are taken of score - max and summed by lane = position % 16;
  // out adds, page by page in order, the page's sum of exp * v in order of positions, and divides
  // by the sum of exponentials last. Positions outside [begin, end) do not take part, whatever the
  // pages hold there. BOUNDED: with s the largest score's error bound g(33 + C / 32) * sum |q k|,
  // each exponential is off by a factor within exp(2 s) (1 + g(8) + 2 u |score - max|), and out by
  // twice that plus g(17 + pages) of sum p |v|.
  void (*attention)(const AttentionCall& call);

  // y[i] = float(row[i]) * scale: a table's row of n bf16 values, of any alignment. EXACT.
  void (*gather_bf16)(const std::byte* row, int64_t n, float scale, float* y);

  // y[i] = (code[i] * group scale) * scale: a table's row in the layout of formats/int4_group32.h,
  // n a multiple of 32, scale_dtype BF16, F16 or F32. EXACT.
  void (*gather_int4)(const std::byte* packed, const std::byte* scales, DType scale_dtype,
                      int64_t n, float scale, float* y);
};

// The table to use in this process: the best that this machine runs, or the one that `forced` names
// (the value of NIBBLE_KERNELS; null or "": no wish). A name that does not exist is an error that
// lists those that do.
Result<const KernelTable*> ChooseKernels(const char* forced);

}  // namespace nibble::kernels
