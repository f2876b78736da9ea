#include "model/ops.h"

#include <vector>

namespace nibble::model {
namespace {

// Waking the pool takes some 10 us; scalar kernels do about 3 multiplications a nanosecond, so that
// below this many (some 80 us) another thread saves little.
constexpr int64_t kMinSplitWork = int64_t{1} << 18;

}  // namespace

void Ops::Split(int64_t n, int64_t work, const std::function<void(int64_t, int64_t)>& body) const {
  if (work < kMinSplitWork) {
    body(0, n);
  } else {
    pool.ParallelFor(n, body);
  }
}

void Ops::Linear(const kernels::PackedWeight& w, const float* x, int64_t n_tokens, float* y) const {
  if (n_tokens == 0) return;
  if (w.format() == kernels::WeightFormat::kInt8Channel) return Int8Linear(w, x, n_tokens, y);
  Split(w.n_tiles(), n_tokens * w.n_rows() * w.n_columns(),
        [&](int64_t begin, int64_t end) { kernels.matmul(w, begin, end, x, n_tokens, y); });
}

void Ops::Int8Linear(const kernels::PackedWeight& w, const float* x, int64_t n_tokens,
                     float* y) const {
  const int64_t width = w.n_columns();
  std::vector<int8_t> codes(static_cast<size_t>(n_tokens * width));
  std::vector<float> scales(static_cast<size_t>(n_tokens));
  kernels.quantize_rows(x, n_tokens, width, codes.data(), scales.data());
  Split(w.n_tiles(), n_tokens * w.n_rows() * width, [&](int64_t begin, int64_t end) {
    kernels.matmul_int8(w, begin, end, codes.data(), scales.data(), n_tokens, y);
  });
}

void Add(const float* b, int64_t n, float* a) {
  for (int64_t i = 0; i < n; ++i) a[i] += b[i];
}

void Scale(float factor, int64_t n, float* a) {
  for (int64_t i = 0; i < n; ++i) a[i] *= factor;
}

}  // namespace nibble::model
