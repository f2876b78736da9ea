#include "kernels/packed_weight.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "formats/int4_group32.h"

namespace nibble::kernels {
namespace {

constexpr size_t kAlignmentBytes = 64;  // a cache line, and the widest vector

// A code of 0 in both nibbles: what padding rows hold.
constexpr std::byte kZeroCodes{0x88};

void PackInt4Row(std::span<const std::byte> packed_row, std::byte* tile, int64_t row) {
  for (size_t i = 0; i < packed_row.size(); ++i) {
    const size_t block = i / (kBlockK / 2);
    const size_t pair = i % (kBlockK / 2);
    tile[block * kInt4BlockBytes + kTileRows * 4 + pair * kTileRows + row] = packed_row[i];
  }
}

}  // namespace

void PackedWeight::Free::operator()(std::byte* data) const { std::free(data); }

PackedWeight::PackedWeight(WeightFormat format, int64_t n_rows, int64_t n_columns)
    : format_(format), n_rows_(n_rows), n_columns_(n_columns) {
  static_assert(kBf16BlockBytes % kAlignmentBytes == 0 && kInt4BlockBytes % kAlignmentBytes == 0);
  const auto bytes = std::max<size_t>(kAlignmentBytes, static_cast<size_t>(size_bytes()));
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignmentBytes, bytes)));
  CHECK(data_ != nullptr);
}

PackedWeight PackedWeight::FromBf16(std::span<const std::byte> rows, int64_t n_rows,
                                    int64_t n_columns, ThreadPool& pool) {
  CHECK(rows.size() == static_cast<size_t>(n_rows * n_columns * 2));
  PackedWeight weight(WeightFormat::kBf16, n_rows, n_columns);
  const int64_t tile_bytes = weight.n_blocks() * kBf16BlockBytes;
  pool.ParallelFor(weight.n_tiles(), [&](int64_t begin, int64_t end) {
    for (int64_t tile_idx = begin; tile_idx < end; ++tile_idx) {
      std::byte* tile = weight.data_.get() + tile_idx * tile_bytes;
      std::memset(tile, 0, static_cast<size_t>(tile_bytes));
      const int64_t first_row = tile_idx * kTileRows;
      for (int64_t row = 0; row < std::min(kTileRows, n_rows - first_row); ++row) {
        const std::byte* source = rows.data() + (first_row + row) * n_columns * 2;
        for (int64_t k = 0; k < n_columns; ++k) {
          std::memcpy(tile + (k * kTileRows + row) * 2, source + k * 2, 2);
        }
      }
    }
  });
  return weight;
}

PackedWeight PackedWeight::FromInt4(std::span<const std::byte> packed,
                                    std::span<const std::byte> scales, DType scale_dtype,
                                    int64_t n_rows, int64_t n_columns, ThreadPool& pool) {
  static_assert(kBlockK == formats::kGroupSize);
  CHECK(n_columns % kBlockK == 0 && packed.size() == static_cast<size_t>(n_rows * n_columns / 2));
  CHECK(scales.size() ==
        static_cast<size_t>(n_rows * (n_columns / kBlockK) * SizeBytes(scale_dtype)));
  PackedWeight weight(WeightFormat::kInt4, n_rows, n_columns);
  const int64_t n_blocks = weight.n_blocks();
  const int64_t tile_bytes = n_blocks * kInt4BlockBytes;
  pool.ParallelFor(weight.n_tiles(), [&](int64_t begin, int64_t end) {
    for (int64_t tile_idx = begin; tile_idx < end; ++tile_idx) {
      std::byte* tile = weight.data_.get() + tile_idx * tile_bytes;
      std::fill(tile, tile + tile_bytes, kZeroCodes);
      const int64_t first_row = tile_idx * kTileRows;
      for (int64_t row = 0; row < kTileRows; ++row) {
        const int64_t source_row = first_row + row;
        const bool exists = source_row < n_rows;
        for (int64_t block = 0; block < n_blocks; ++block) {
          const float scale =
              exists ? formats::ReadScale(scales, scale_dtype, source_row * n_blocks + block) : 0;
          std::memcpy(tile + block * kInt4BlockBytes + row * 4, &scale, sizeof scale);
        }
        if (!exists) continue;
        const auto row_bytes = static_cast<size_t>(n_columns / 2);
        PackInt4Row(packed.subspan(static_cast<size_t>(source_row) * row_bytes, row_bytes), tile,
                    row);
      }
    }
  });
  return weight;
}

}  // namespace nibble::kernels
