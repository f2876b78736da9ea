// What the parts of the forward pass compute with: the chosen kernels, and the threads that their
// work is split over. Splitting never changes a value (kernels/kernels.h).
#pragma once

#include <cstdint>
#include <functional>

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace nibble::model {

struct Ops {
  const kernels::KernelTable& kernels;
  ThreadPool& pool;

  // y[T, N] = x[T, K] w[N, K]^T; an int8 matrix takes x quantised to int8, each token by itself.
  void Linear(const kernels::PackedWeight& w, const float* x, int64_t n_tokens, float* y) const;

  // body(begin, end) over [0, n): on all threads if the whole is worth waking them.
  // work: multiplications of the whole, roughly.
  void Split(int64_t n, int64_t work,
             const std::function<void(int64_t begin, int64_t end)>& body) const;

 private:
  void Int8Linear(const kernels::PackedWeight& w, const float* x, int64_t n_tokens, float* y) const;
};

// a[i] += b[i]
void Add(const float* b, int64_t n, float* a);
// a[i] *= factor
void Scale(float factor, int64_t n, float* a);

}  // namespace nibble::model
