// Norms, activations, softmax and the rounding of activations with NEON: floats16/ over this
// instruction set's registers.
#include "kernels/floats16/pointwise.h"

#include "kernels/neon/lanes.h"
#include "kernels/neon/neon.h"

namespace nibble::kernels::neon {

void RmsNorm(const float* x, const float* weight, int64_t n_rows, int64_t width, float eps,
             float* y) {
  floats16::RmsNorm<Floats>(x, weight, n_rows, width, eps, y);
}

void GeluMul(const float* gate, const float* up, int64_t n, float* y) {
  floats16::GeluMul<Floats>(gate, up, n, y);
}

void Softcap(float* x, int64_t n, float cap) { floats16::Softcap<Floats>(x, n, cap); }

void Softmax(float* x, int64_t n) { floats16::Softmax<Floats>(x, n); }

void Quantize(const float* x, int64_t n_rows, int64_t n_columns, const Int8Rows& rows) {
  floats16::Quantize<Floats>(x, n_rows, n_columns, rows);
}

void QuantizeRows(const float* x, int64_t n_rows, int64_t n_columns, int8_t* codes, float* scales) {
  floats16::QuantizeRows<Floats>(x, n_rows, n_columns, codes, scales);
}

}  // namespace nibble::kernels::neon
