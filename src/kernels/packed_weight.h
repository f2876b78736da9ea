// A weight matrix [N, K] in the order in which matmul reads it: copied once when a model is loaded.
//
// Rows are cut into tiles of 16 and K into blocks of 32; a tile holds its blocks in order, and
// within a block the 16 rows' values of one k stand side by side, because kernels let lanes be
// output rows. Missing rows of the last tile and missing k of the last block are zero.
//   bf16 block (1024 bytes): uint16 [32 k][16 rows]
//   int4 block (320 bytes):  float scale [16 rows], then bytes [16 pairs of k][16 rows]: code + 8
//   of
//                            k = 2p in the low nibble, of k = 2p + 1 in the high one
//   int8 block (640 bytes):  float scale [2 halves of k][16 rows], then int8 code [32 k][16 rows]
//   int8-channel block (512 bytes): int8 code [32 k][16 rows]; one scale per row stands apart
//   f32 block (2048 bytes):  float [32 k][16 rows]
// A packed weight's value is code * scale in float32, which is exact for bf16 and fp16 scales (4
// and 11 significant bits fit into 24), and is not rounded to bf16 as bf16 readers do. Q6_K's steps
// are exact in float32; its values, step * code, are those before the rounding to float32 that
// ggml's own reader does. Tested by matmul_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/thread_pool.h"

namespace nibble::kernels {

inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kBlockK = 32;
inline constexpr int64_t kBf16BlockBytes = kBlockK * kTileRows * 2;
inline constexpr int64_t kInt4BlockBytes = kTileRows * 4 + kBlockK * kTileRows / 2;
inline constexpr int64_t kInt8BlockBytes = 2 * kTileRows * 4 + kBlockK * kTileRows;
inline constexpr int64_t kInt8ChannelBlockBytes = kBlockK * kTileRows;
inline constexpr int64_t kFloat32BlockBytes = kBlockK * kTileRows * 4;

enum class WeightFormat { kBf16, kInt4, kInt8, kInt8Channel, kFloat32 };

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

  // codes, scales: the layout of formats/int8_channel.h; scale_dtype kF32, kBF16 or kF16.
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

  WeightFormat format() const { return format_; }
  int64_t n_rows() const { return n_rows_; }        // N
  int64_t n_columns() const { return n_columns_; }  // K
  int64_t n_tiles() const { return (n_rows_ + kTileRows - 1) / kTileRows; }
  int64_t n_blocks() const { return (n_columns_ + kBlockK - 1) / kBlockK; }  // of one tile
  int64_t block_bytes() const;
  int64_t size_bytes() const {
    return n_tiles() * n_blocks() * block_bytes() + std::ssize(row_scales_) * 4;
  }
  std::span<const float> row_scales() const { return row_scales_; }  // kInt8Channel: [n_rows]

  // The blocks of one tile, 64-byte aligned.
  const std::byte* Tile(int64_t tile_idx) const {
    return data_.get() + tile_idx * n_blocks() * block_bytes();
  }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };

  PackedWeight(WeightFormat format, int64_t n_rows, int64_t n_columns);

  // Calls fill(tile, row) for each of the rows, where `row` is their place in `tile`, a tile whose
  // bytes are `empty`.
  template <typename Fill>
  void FillTiles(std::byte empty, ThreadPool& pool, Fill fill);

  WeightFormat format_ = WeightFormat::kBf16;
  int64_t n_rows_ = 0;
  int64_t n_columns_ = 0;
  std::vector<float> row_scales_;
  std::unique_ptr<std::byte[], Free> data_;
};

}  // namespace nibble::kernels
