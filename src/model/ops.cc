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

void Ops::Linear(const kernels::PackedWeight& weight, LinearInput& x, float* y) const {
  const int64_t n_rows = x.n_rows();
  if (n_rows == 0) return;
  const kernels::WeightView& w = weight.view();
  const auto split = [&](const auto& multiply) {
    Split(w.n_tiles, n_rows * w.n_rows * w.n_columns, multiply);
  };
  if (w.format == kernels::WeightFormat::kInt8Channel) {
    const LinearInput::ByRow& rows = x.Rows(*this);
    split([&](int64_t begin, int64_t end) {
      kernels.matmul_int8_channel(w, begin, end, rows.codes.data(), rows.scales.data(), n_rows, y);
    });
  } else if (w.format == kernels::WeightFormat::kInt4 && activations == Activations::kInt8) {
    const kernels::Int8Rows& blocks = x.Int8Blocks(*this);
    split(
        [&](int64_t begin, int64_t end) { kernels.matmul_int8(w, begin, end, blocks, n_rows, y); });
  } else if (w.format == kernels::WeightFormat::kInt4 && activations == Activations::kInt16) {
    const kernels::Int16Rows& blocks = x.Int16Blocks(*this);
    split([&](int64_t begin, int64_t end) {
      kernels.matmul_int16(w, begin, end, blocks, n_rows, y);
    });
  } else {
    split([&](int64_t begin, int64_t end) { kernels.matmul(w, begin, end, x.x(), n_rows, y); });
  }
}

void LinearInput::Assign(const float* x, int64_t n_rows, int64_t width) {
  x_ = x;
  n_rows_ = n_rows;
  width_ = width;
  int8_blocks_.is_filled = false;
  int16_blocks_.is_filled = false;
  has_rows_ = false;
}

template <typename T, typename Quantize>
const kernels::RoundedRows<T>& LinearInput::Round(const Ops& ops, Quantize quantize,
                                                  ByBlock<T>* blocks) const {
  if (blocks->is_filled) return blocks->rows;
  blocks->is_filled = true;
  blocks->scales.resize(static_cast<size_t>(n_rows_ * n_blocks()));
  blocks->offsets.resize(blocks->scales.size());
  blocks->values.resize(blocks->scales.size() * kernels::kBlockK);
  blocks->rows = {blocks->values.data(), blocks->scales.data(), blocks->offsets.data()};
  ops.Split(n_rows_, n_rows_ * width_, [&](int64_t begin, int64_t end) {
    const int64_t block = begin * n_blocks();
    quantize(x_ + begin * width_, end - begin, width_,
             {blocks->rows.values + block * kernels::kBlockK, blocks->rows.scales + block,
              blocks->rows.offsets + block});
  });
  return blocks->rows;
}

const kernels::Int8Rows& LinearInput::Int8Blocks(const Ops& ops) {
  return Round(ops, ops.kernels.quantize_int8, &int8_blocks_);
}

const kernels::Int16Rows& LinearInput::Int16Blocks(const Ops& ops) {
  return Round(ops, ops.kernels.quantize_int16, &int16_blocks_);
}

const LinearInput::ByRow& LinearInput::Rows(const Ops& ops) {
  if (has_rows_) return rows_;
  has_rows_ = true;
  const int64_t padded = n_blocks() * kernels::kBlockK;
  rows_.codes.resize(static_cast<size_t>(n_rows_ * padded));
  rows_.scales.resize(static_cast<size_t>(n_rows_));
  ops.Split(n_rows_, n_rows_ * width_ * 4, [&](int64_t begin, int64_t end) {
    ops.kernels.quantize_rows(x_ + begin * width_, end - begin, width_,
                              rows_.codes.data() + begin * padded, rows_.scales.data() + begin);
  });
  return rows_;
}

void Add(const float* b, int64_t n, float* a) {
  for (int64_t i = 0; i < n; ++i) a[i] += b[i];
}

void Scale(float factor, int64_t n, float* a) {
  for (int64_t i = 0; i < n; ++i) a[i] *= factor;
}

}  // namespace nibble::model
