// Owns a weight matrix in the order in which matmul reads it (WeightView in kernels.h): copied once
// when a model is loaded. Tested by matmul_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

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

  // codes, scales: the layout of formats/int8_channel.h; scale_dtype F32, BF16 or F16.
  static PackedWeight FromInt8Channel(std::span<const std::byte> codes,
                                      std::span<const std::byte> scales, DType scale_dtype,
                                      int64_t n_rows, int64_t n_columns, ThreadPool& pool);

  // rows: float32 [n_rows, n_columns], row-major, of any alignment.
  static PackedWeight FromFloat32(std::span<const std::byte> rows, int64_t n_rows,
                                  int64_t n_columns, ThreadPool& pool);

  // blocks: rows in the layout of formats/q4_0.h, as int4; n_columns a multiple of 32.
  static PackedWeight FromQ40(std::span<const std::byte> blocks, int64_t n_rows, int64_t n_columns,
                              ThreadPool& pool);

  // blocks: rows in the layout of formats/q6_k.h, as int8; n_columns a multiple of 256.
  static PackedWeight FromQ6K(std::span<const std::byte> blocks, int64_t n_rows, int64_t n_columns,
                              ThreadPool& pool);

  const WeightView& view() const { return view_; }
  int64_t size_bytes() const {
    return view_.n_tiles * view_.tile_bytes + std::ssize(row_scales_) * 4;
  }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };

  PackedWeight(WeightFormat format, DType scale_dtype, int64_t n_rows, int64_t n_columns);

  // Calls fill(tile, lane, row) for each row: its tile, whose blocks hold `empty` and whose scales
  // are zero, and its lane in the tile.
  template <typename Fill>
  void FillTiles(std::byte empty, ThreadPool& pool, const Fill& fill);

  WeightView view_;
  std::vector<float> row_scales_;
  std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace nibble::kernels
