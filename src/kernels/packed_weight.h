// Owns a weight matrix in the order in which matmul reads it (WeightView in kernels.h): copied once
// when a model is loaded. Tested by matmul_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace nibble::kernels {

class PackedWeight {
 public:
  PackedWeight() = default;

  // rows: bf16 [n_rows, n_columns], row-major, of any alignment.
  static PackedWeight FromBf16(std::span<const std::byte> rows, int64_t n_rows, int64_t n_columns,
                               ThreadPool& pool);

  // packed, scales: the layout of formats/int4_group32.h; n_columns a multiple of 32.
  static PackedWeight FromInt4(std::span<const std::byte> packed, std::span<const std::byte> scales,
                               DType scale_dtype, int64_t n_rows, int64_t n_columns,
                               ThreadPool& pool);

  const WeightView& view() const { return view_; }
  int64_t size_bytes() const { return view_.n_tiles * view_.tile_bytes; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };

  PackedWeight(WeightFormat format, DType scale_dtype, int64_t n_rows, int64_t n_columns);

  WeightView view_;
  std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace nibble::kernels
