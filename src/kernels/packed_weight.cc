#include "kernels/packed_weight.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "formats/int4_group32.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kAlignmentBytes = 64;  // a cache line, and the widest vector

// A code of 0 in both nibbles: what padding rows hold.
constexpr std::byte kZeroCodes{0x88};

// Four nibbles to the low halves of four bytes.
uint32_t Spread(uint32_t nibbles) {
  nibbles = (nibbles | nibbles << 8) & 0x00ff00ffu;
  return (nibbles | nibbles << 4) & 0x0f0f0f0fu;
}

// A row of codes, low nibble first, into lane `row` of a tile.
void PackInt4Row(std::span<const std::byte> packed_row, std::byte* tile, int64_t row) {
  std::byte* word = tile + row * 4;
  for (size_t i = 0; i < packed_row.size(); i += 4, word += kTileRows * 4) {
    uint32_t codes = 0;
    std::memcpy(&codes, packed_row.data() + i, sizeof codes);
    codes = Spread(codes & 0xffff) | Spread(codes >> 16) << 4;
    std::memcpy(word, &codes, sizeof codes);
  }
}

}  // namespace

void PackedWeight::Free::operator()(std::byte* data) const { std::free(data); }

PackedWeight::PackedWeight(WeightFormat format, DType scale_dtype, int64_t n_rows,
                           int64_t n_columns) {
  const bool is_int4 = format == WeightFormat::kInt4;
  const int64_t n_blocks = (n_columns + kBlockK - 1) / kBlockK;
  const int64_t scales_offset = n_blocks * (is_int4 ? kInt4BlockBytes : kBf16BlockBytes);
  const int64_t scales_bytes = is_int4 ? n_blocks * kTileRows * SizeBytes(scale_dtype) : 0;
  const int64_t n_lines = (scales_offset + scales_bytes + kAlignmentBytes - 1) / kAlignmentBytes;
  view_ = {.format = format,
           .scale_dtype = scale_dtype,
           .n_rows = n_rows,
           .n_columns = n_columns,
           .n_tiles = (n_rows + kTileRows - 1) / kTileRows,
           .n_blocks = n_blocks,
           .tile_bytes = n_lines * kAlignmentBytes,
           .scales_offset = scales_offset};
  const auto bytes = static_cast<size_t>(std::max(kAlignmentBytes, size_bytes()));
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignmentBytes, bytes)));
  CHECK(data_ != nullptr);
  view_.tiles = data_.get();
}

PackedWeight PackedWeight::FromBf16(std::span<const std::byte> rows, int64_t n_rows,
                                    int64_t n_columns, ThreadPool& pool) {
  CHECK(rows.size() == static_cast<size_t>(n_rows * n_columns * 2));
  PackedWeight weight(WeightFormat::kBf16, DType::kBF16, n_rows, n_columns);
  const int64_t tile_bytes = weight.view_.tile_bytes;
  pool.ParallelFor(weight.view_.n_tiles, [&](int64_t begin, int64_t end) {
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
  PackedWeight weight(WeightFormat::kInt4, scale_dtype, n_rows, n_columns);
  const int64_t n_blocks = weight.view_.n_blocks;
  const int64_t row_bytes = n_columns / 2;
  const int64_t scale_bytes = SizeBytes(scale_dtype);
  pool.ParallelFor(weight.view_.n_tiles, [&](int64_t begin, int64_t end) {
    for (int64_t tile_idx = begin; tile_idx < end; ++tile_idx) {
      std::byte* tile = weight.data_.get() + tile_idx * weight.view_.tile_bytes;
      std::byte* tile_scales = tile + n_blocks * kInt4BlockBytes;
      std::fill(tile, tile_scales, kZeroCodes);
      std::fill(tile_scales, tile + weight.view_.tile_bytes, std::byte{0});
      const int64_t first_row = tile_idx * kTileRows;
      for (int64_t row = 0; row < std::min(kTileRows, n_rows - first_row); ++row) {
        PackInt4Row(packed.subspan(static_cast<size_t>((first_row + row) * row_bytes),
                                   static_cast<size_t>(row_bytes)),
                    tile, row);
        const std::byte* source = scales.data() + (first_row + row) * n_blocks * scale_bytes;
        for (int64_t block = 0; block < n_blocks; ++block) {
          std::memcpy(tile_scales + (block * kTileRows + row) * scale_bytes,
                      source + block * scale_bytes, static_cast<size_t>(scale_bytes));
        }
      }
    }
  });
  return weight;
}

}  // namespace nibble::kernels
