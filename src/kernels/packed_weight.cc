#include "kernels/packed_weight.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "formats/int4_group32.h"
#include "formats/q4_0.h"
#include "formats/q6_k.h"

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

int64_t PackedWeight::block_bytes() const {
  switch (format_) {
    case WeightFormat::kBf16:
      return kBf16BlockBytes;
    case WeightFormat::kInt4:
      return kInt4BlockBytes;
    case WeightFormat::kInt8:
      return kInt8BlockBytes;
    case WeightFormat::kInt8Channel:
      return kInt8ChannelBlockBytes;
    case WeightFormat::kFloat32:
      return kFloat32BlockBytes;
  }
  CHECK(false);
}

template <typename Fill>
void PackedWeight::FillTiles(std::byte empty, ThreadPool& pool, Fill fill) {
  const int64_t tile_bytes = n_blocks() * block_bytes();
  pool.ParallelFor(n_tiles(), [&](int64_t begin, int64_t end) {
    for (int64_t tile_idx = begin; tile_idx < end; ++tile_idx) {
      std::byte* const tile = data_.get() + tile_idx * tile_bytes;
      std::fill(tile, tile + tile_bytes, empty);
      const int64_t first_row = tile_idx * kTileRows;
      for (int64_t row = first_row; row < std::min(first_row + kTileRows, n_rows_); ++row) {
        fill(tile, row);
      }
    }
  });
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

PackedWeight PackedWeight::FromInt8Channel(std::span<const std::byte> codes,
                                           std::span<const std::byte> scales, DType scale_dtype,
                                           int64_t n_rows, int64_t n_columns, ThreadPool& pool) {
  CHECK(codes.size() == static_cast<size_t>(n_rows * n_columns));
  CHECK(scales.size() == static_cast<size_t>(n_rows * SizeBytes(scale_dtype)));
  PackedWeight weight(WeightFormat::kInt8Channel, n_rows, n_columns);
  for (int64_t row = 0; row < n_rows; ++row) {
    weight.row_scales_.push_back(formats::ReadScale(scales, scale_dtype, row));
  }
  weight.FillTiles(std::byte{0}, pool, [&](std::byte* tile, int64_t row) {
    const std::byte* const source = codes.data() + row * n_columns;
    for (int64_t k = 0; k < n_columns; ++k) tile[k * kTileRows + row % kTileRows] = source[k];
  });
  return weight;
}

PackedWeight PackedWeight::FromFloat32(std::span<const std::byte> rows, int64_t n_rows,
                                       int64_t n_columns, ThreadPool& pool) {
  CHECK(rows.size() == static_cast<size_t>(n_rows * n_columns) * sizeof(float));
  PackedWeight weight(WeightFormat::kFloat32, n_rows, n_columns);
  weight.FillTiles(std::byte{0}, pool, [&](std::byte* tile, int64_t row) {
    const std::byte* const source = rows.data() + row * n_columns * 4;
    for (int64_t k = 0; k < n_columns; ++k) {
      std::memcpy(tile + (k * kTileRows + row % kTileRows) * 4, source + k * 4, 4);
    }
  });
  return weight;
}

PackedWeight PackedWeight::FromQ40(std::span<const std::byte> blocks, int64_t n_rows,
                                   int64_t n_columns, ThreadPool& pool) {
  static_assert(kBlockK == formats::kQ40BlockSize);
  constexpr int64_t kBytes = formats::kQ40BlockBytes;
  CHECK(n_columns % kBlockK == 0);
  CHECK(blocks.size() == static_cast<size_t>(n_rows * (n_columns / kBlockK) * kBytes));
  PackedWeight weight(WeightFormat::kInt4, n_rows, n_columns);
  const int64_t n_blocks = weight.n_blocks();
  // Rows that do not exist are never read back, so their scales may be anything finite.
  weight.FillTiles(kZeroCodes, pool, [&](std::byte* tile, int64_t row) {
    for (int64_t i = 0; i < n_blocks; ++i) {
      int8_t codes[kBlockK];
      const float scale = formats::UnpackQ40Block(
          blocks.subspan(static_cast<size_t>((row * n_blocks + i) * kBytes)).first<kBytes>(),
          codes);
      std::byte* const block = tile + i * kInt4BlockBytes;
      const int64_t lane = row % kTileRows;
      std::memcpy(block + lane * 4, &scale, sizeof scale);
      for (int64_t pair = 0; pair < kBlockK / 2; ++pair) {
        const int both = (codes[2 * pair] + 8) | (codes[2 * pair + 1] + 8) << 4;
        block[kTileRows * 4 + pair * kTileRows + lane] = static_cast<std::byte>(both);
      }
    }
  });
  return weight;
}

PackedWeight PackedWeight::FromQ6K(std::span<const std::byte> blocks, int64_t n_rows,
                                   int64_t n_columns, ThreadPool& pool) {
  constexpr int64_t kSize = formats::kQ6KBlockSize;
  constexpr int64_t kBytes = formats::kQ6KBlockBytes;
  static_assert(kBlockK == int64_t{2} * formats::kQ6KGroupSize);
  CHECK(n_columns % kSize == 0);
  const int64_t per_row = n_columns / kSize;
  CHECK(blocks.size() == static_cast<size_t>(n_rows * per_row * kBytes));
  PackedWeight weight(WeightFormat::kInt8, n_rows, n_columns);
  weight.FillTiles(std::byte{0}, pool, [&](std::byte* tile, int64_t row) {
    const int64_t lane = row % kTileRows;
    for (int64_t i = 0; i < per_row; ++i) {
      int8_t codes[kSize];
      float steps[formats::kQ6KGroups];
      formats::UnpackQ6KBlock(
          blocks.subspan(static_cast<size_t>((row * per_row + i) * kBytes)).first<kBytes>(), codes,
          steps);
      for (int64_t j = 0; j < kSize; ++j) {
        std::byte* const block = tile + (i * kSize + j) / kBlockK * kInt8BlockBytes;
        const int64_t k = j % kBlockK;
        block[2 * kTileRows * 4 + k * kTileRows + lane] = static_cast<std::byte>(codes[j]);
        const int64_t half = k / formats::kQ6KGroupSize;
        std::memcpy(block + (half * kTileRows + lane) * 4, &steps[j / formats::kQ6KGroupSize],
                    sizeof(float));
      }
    }
  });
  return weight;
}

}  // namespace nibble::kernels
