// The scalar kernels: plain loops in exactly the order that kernels.h states, for any machine.
// Loops over 16 rows or lanes are written so that a compiler can use whatever vectors the baseline
// has.
#pragma once

#include "kernels/kernels.h"

namespace nibble::kernels::scalar {

extern const KernelTable kTable;

void Matmul(const WeightView& w, int64_t tile_begin, int64_t tile_end, const float* x,
            int64_t n_tokens, float* y);
void QuantizeInt8(const float* x, int64_t n_rows, int64_t n_columns, const Int8Rows& rows);
void QuantizeInt16(const float* x, int64_t n_rows, int64_t n_columns, const Int16Rows& rows);
void MatmulInt8(const WeightView& w, int64_t tile_begin, int64_t tile_end, const Int8Rows& x,
                int64_t n_tokens, float* y);
void MatmulInt16(const WeightView& w, int64_t tile_begin, int64_t tile_end, const Int16Rows& x,
                 int64_t n_tokens, float* y);
void QuantizeRows(const float* x, int64_t n_rows, int64_t n_columns, int8_t* codes, float* scales);
void MatmulInt8Channel(const WeightView& w, int64_t tile_begin, int64_t tile_end, const int8_t* x,
                       const float* x_scales, int64_t n_tokens, float* y);
void RmsNorm(const float* x, const float* weight, int64_t n_rows, int64_t width, float eps,
             float* y);
void Rotate(float* x, int64_t n_heads, int64_t head_dim, const float* cos, const float* sin,
            int64_t n_pairs);
void GeluMul(const float* gate, const float* up, int64_t n, float* y);
void Softcap(float* x, int64_t n, float cap);
void Softmax(float* x, int64_t n);
void Attention(const AttentionCall& call);
void GatherBf16(const std::byte* row, int64_t n, float scale, float* y);
void GatherInt4(const std::byte* packed, const std::byte* scales, DType scale_dtype, int64_t n,
                float scale, float* y);

}  // namespace nibble::kernels::scalar
