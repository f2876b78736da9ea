// Owns a weight matrix in the order in which matmul reads it (WeightView in kernels.h): copied once
// when a model is loaded, into a store; or taken from a filled store, and what it would be copied
// from is not read. Tested by matmul_test.cc and tile_store_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "kernels/kernels.h"
#include "kernels/tile_store.h"

namespace nibble::kernels {

class PackedWeight {
 public:
  PackedWeight() = default;

  // rows: bf16 [n_rows, n_columns], row-major, of any alignment.
  static PackedWeight FromBf16(std::span<const std::byte> rows, int64_t n_rows, int64_t n_columns,
                               TileStore& store);

  // packed, scales: the layout of formats/int4_group32.h; n_columns a multiple of 32.
  static PackedWeight FromInt4(std::span<const std::byte> packed, std::span<const std::byte> scales,
                               DType scale_dtype, int64_t n_rows, int64_t n_columns,
                               TileStore& store);

  // codes, scales: the layout of formats/int8_channel.h; scale_dtype F32, BF16 or F16.
  static PackedWeight FromInt8Channel(std::span<const std::byte> codes,
                                      std::span<const std::byte> scales, DType scale_dtype,
                                      int64_t n_rows, int64_t n_columns, TileStore& store);

  // rows: float32 [n_rows, n_columns], row-major, of any alignment.
  static PackedWeight FromFloat32(std::span<const std::byte> rows, int64_t n_rows,
                                  int64_t n_columns, TileStore& store);

  // blocks: rows in the layout of formats/q4_0.h, as int4; n_columns a multiple of 32.
  static PackedWeight FromQ40(std::span<const std::byte> blocks, int64_t n_rows, int64_t n_columns,
                              TileStore& store);

  // blocks: rows in the layout of formats/q6_k.h, as int8; n_columns a multiple of 256.
  static PackedWeight FromQ6K(std::span<const std::byte> blocks, int64_t n_rows, int64_t n_columns,
                              TileStore& store);

  const WeightView& view() const { return view_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  PackedWeight(WeightFormat format, DType scale_dtype, int64_t n_rows, int64_t n_columns,
               TileStore& store);

  // Calls fill(tile, lane, row) for each row: its tile, whose blocks hold `empty` and whose scales
  // are zero, and its lane in the tile; unless the store is filled.
  template <typename Fill>
  void FillTiles(std::byte empty, const TileStore& store, const Fill& fill);

  WeightView view_;
  int64_t size_bytes_ = 0;
  std::shared_ptr<std::byte[]> data_;  // tiles, then the scales of rows
};

}  // namespace nibble::kernels
