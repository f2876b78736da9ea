// The kernels for CPUs with AVX-512 F, BW, DQ, VL and VNNI. Compiled with those instructions, so
// its files include nothing that defines an inline function.
#pragma once

#include "kernels/kernels.h"

namespace nibble::kernels::avx512 {

extern const KernelTable kTable;

void Matmul(const WeightView& w, int64_t tile_begin, int64_t tile_end, const float* x,
            int64_t n_tokens, float* y);
void MatmulInt8(const WeightView& w, int64_t tile_begin, int64_t tile_end, const Int8Rows& x,
                int64_t n_tokens, float* y);
void MatmulInt16(const WeightView& w, int64_t tile_begin, int64_t tile_end, const Int16Rows& x,
                 int64_t n_tokens, float* y);
void MatmulInt8Channel(const WeightView& w, int64_t tile_begin, int64_t tile_end, const int8_t* x,
                       const float* x_scales, int64_t n_tokens, float* y);

}  // namespace nibble::kernels::avx512
