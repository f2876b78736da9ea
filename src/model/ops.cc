#include "model/ops.h"

namespace nibble::model {
namespace {

// Waking the pool takes about a microsecond while it spins; kernels do some 20 multiplications a
// nanosecond, so that below this many another thread saves little.
constexpr int64_t kMinSplitWork = int64_t{1} << 16;

}  // namespace

void Ops::Split(int64_t n, int64_t work, const std::function<void(int64_t, int64_t)>& body) const {
  if (work < kMinSplitWork) {
    body(0, n);
  } else {
    pool.ParallelFor(n, body);
  }
}

void Ops::Linear(const kernels::PackedWeight& w, const LinearInput& x, float* y) const {
  if (x.n_rows() == 0) return;
  const kernels::WeightView& view = w.view();
  if (view.format == kernels::WeightFormat::kInt8Channel) return Int8ChannelLinear(view, x, y);
  const bool is_int8 =
      activations == Activations::kInt8 && view.format == kernels::WeightFormat::kInt4;
  Split(view.n_tiles, x.n_rows() * view.n_rows * view.n_columns, [&](int64_t begin, int64_t end) {
    if (is_int8) {
      kernels.matmul_int8(view, begin, end, x.int8_rows(), x.n_rows(), y);
    } else {
      kernels.matmul(view, begin, end, x.x(), x.n_rows(), y);
    }
  });
}

void Ops::Int8ChannelLinear(const kernels::WeightView& w, const LinearInput& x, float* y) const {
  const int64_t padded = w.n_blocks * kernels::kBlockK;
  std::vector<int8_t> codes(static_cast<size_t>(x.n_rows() * padded));
  std::vector<float> scales(static_cast<size_t>(x.n_rows()));
  Split(x.n_rows(), x.n_rows() * w.n_columns * 4, [&](int64_t begin, int64_t end) {
    kernels.quantize_rows(x.x() + begin * w.n_columns, end - begin, w.n_columns,
                          codes.data() + begin * padded, scales.data() + begin);
  });
  Split(w.n_tiles, x.n_rows() * w.n_rows * w.n_columns, [&](int64_t begin, int64_t end) {
    kernels.matmul_int8_channel(w, begin, end, codes.data(), scales.data(), x.n_rows(), y);
  });
}

void LinearInput::Assign(const Ops& ops, const float* x, int64_t n_rows, int64_t width) {
  x_ = x;
  n_rows_ = n_rows;
  if (ops.activations != Activations::kInt8) return;
  const int64_t n_blocks = (width + kernels::kBlockK - 1) / kernels::kBlockK;
  values_.resize(static_cast<size_t>(n_rows * n_blocks * kernels::kBlockK));
  scales_.resize(static_cast<size_t>(n_rows * n_blocks));
  offsets_.resize(scales_.size());
  int8_rows_ = {values_.data(), scales_.data(), offsets_.data()};
  ops.Split(n_rows, n_rows * width, [&](int64_t begin, int64_t end) {
    const kernels::Int8Rows rows = {values_.data() + begin * n_blocks * kernels::kBlockK,
                                    scales_.data() + begin * n_blocks,
                                    offsets_.data() + begin * n_blocks};
    ops.kernels.quantize(x + begin * width, end - begin, width, rows);
  });
}

void Add(const float* b, int64_t n, float* a) {
  for (int64_t i = 0; i < n; ++i) a[i] += b[i];
}

void Scale(float factor, int64_t n, float* a) {
  for (int64_t i = 0; i < n; ++i) a[i] *= factor;
}

}  // namespace nibble::model
