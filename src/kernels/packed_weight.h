// A weight matrix [N, K] in the order in which matmul reads it: copied once when a model is loaded.
//
// Rows are cut into tiles of 16 and K into blocks of 32; a tile holds its blocks in order, and
// within a block the 16 rows' values of one k stand side by side, because kernels let lanes be
// output rows. Missing rows of the last tile and missing k of the last block are zero.
//   bf16 block (1024 bytes): uint16 [32 k][16 rows]
//   int4 block (320 bytes):  float scale [16 rows], then bytes [16 pairs of k][16 rows]: code + 8
//   of
//                            k = 2p in the low nibble, of k = 2p + 1 in the high one
// A packed weight's value is code * scale in float32, which is exact for bf16 and fp16 scales (4
// and 11 significant bits fit into 24), and is not rounded to bf16 as bf16 readers do. Tested by
// matmul_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "base/thread_pool.h"

namespace nibble::kernels {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kBlockK = 32;
inline constexpr int64_t kBf16BlockBytes = kBlockK * kTileRows * 2;
inline constexpr int64_t kInt4BlockBytes = kTileRows * 4 + kBlockK * kTileRows / 2;

enum class WeightFormat { kBf16, kInt4 };

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

  WeightFormat format() const { return format_; }
  int64_t n_rows() const { return n_rows_; }        // N
  int64_t n_columns() const { return n_columns_; }  // K
  int64_t n_tiles() const { return (n_rows_ + kTileRows - 1) / kTileRows; }
  int64_t n_blocks() const { return (n_columns_ + kBlockK - 1) / kBlockK; }  // of one tile
  int64_t block_bytes() const {
    return format_ == WeightFormat::kBf16 ? kBf16BlockBytes : kInt4BlockBytes;
  }
  int64_t size_bytes() const { return n_tiles() * n_blocks() * block_bytes(); }

  // The blocks of one tile, 64-byte aligned.
  const std::byte* Tile(int64_t tile_idx) const {
    return data_.get() + tile_idx * n_blocks() * block_bytes();
  }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };

  PackedWeight(WeightFormat format, int64_t n_rows, int64_t n_columns);

  WeightFormat format_ = WeightFormat::kBf16;
  int64_t n_rows_ = 0;
  int64_t n_columns_ = 0;
  std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace nibble::kernels
