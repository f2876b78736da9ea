// What the parts of the forward pass compute with: the chosen kernels, the threads that their work
// is split over, and how precise activations are. Splitting never changes a value
// (kernels/kernels.h).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/packed_weight.h"

namespace nibble::model {

// What int4 linears multiply with.
enum class Activations : uint8_t {
  kF32,    // as they are: the reference
  kInt16,  // rounded to int16, 32 values a scale (KernelTable::quantize_int16)
  kInt8,   // rounded to int8, 32 values a scale
};

class LinearInput;

struct Ops {
  const kernels::KernelTable& kernels;
  ThreadPool& pool;
  Activations activations = Activations::kF32;

  // y[T, N] = x[T, K] w[N, K]^T, with x as `activations` has it; an int8-channel matrix takes it as
  // readers of that format do.
  void Linear(const kernels::PackedWeight& w, LinearInput& x, float* y) const;

  // body(begin, end) over [0, n): on all threads if the whole is worth waking them.
  // work: multiplications of the whole, roughly.
  void Split(int64_t n, int64_t work,
             const std::function<void(int64_t begin, int64_t end)>& body) const;
};

// Rows of activations as linears read them. Rounded when the first linear needs it, and once for
// all linears of the same input.
class LinearInput {
 public:
  // x: [n_rows, width], which must stay until the last linear has read it.
  void Assign(const float* x, int64_t n_rows, int64_t width);

  const float* x() const { return x_; }
  int64_t n_rows() const { return n_rows_; }
  // By 32 values (KernelTable::quantize_int8 and quantize_int16).
  const kernels::Int8Rows& Int8Blocks(const Ops& ops);
  const kernels::Int16Rows& Int16Blocks(const Ops& ops);
  // By row (KernelTable::quantize_rows).
  struct ByRow {
    std::vector<int8_t> codes;
    std::vector<float> scales;
  };
  const ByRow& Rows(const Ops& ops);

 private:
  // Rows rounded by 32 values, and their memory.
  template <typename T>
  struct ByBlock {
    bool is_filled = false;
    kernels::RoundedRows<T> rows;
    std::vector<T> values;
    std::vector<float> scales;
    std::vector<int32_t> offsets;
  };

  // Fills it if it is not: `quantize` is the table's.
  template <typename T, typename Quantize>
  const kernels::RoundedRows<T>& Round(const Ops& ops, Quantize quantize, ByBlock<T>* blocks) const;

  int64_t n_blocks() const { return (width_ + kernels::kBlockK - 1) / kernels::kBlockK; }

  const float* x_ = nullptr;
  int64_t n_rows_ = 0;
  int64_t width_ = 0;
  ByBlock<int8_t> int8_blocks_;
  ByBlock<int16_t> int16_blocks_;
  bool has_rows_ = false;
  ByRow rows_;
};

// a[i] += b[i]
void Add(const float* b, int64_t n, float* a);
// a[i] *= factor
void Scale(float factor, int64_t n, float* a);

}  // namespace nibble::model
