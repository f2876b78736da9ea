#include "kernels/packed_weight.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "formats/int4_group32.h"
#include "formats/q4_0.h"
#include "formats/q6_k.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kLineBytes = 64;

// A code of 0 in both nibbles: what padding rows hold.
constexpr std::byte kZeroCodes{0x88};

// Four nibbles to the low halves of four bytes.
uint32_t Spread(uint32_t nibbles) {
  nibbles = (nibbles | nibbles << 8) & 0x00ff00ffu;
  return (nibbles | nibbles << 4) & 0x0f0f0f0fu;
}

// Eight codes (+ 8), nibble i the i-th, as a word of a tile.
uint32_t TileWord(uint32_t codes) { return Spread(codes & 0xffff) | Spread(codes >> 16) << 4; }

int64_t BlockBytes(WeightFormat format) {
  switch (format) {
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

}  // namespace

PackedWeight::PackedWeight(WeightFormat format, DType scale_dtype, int64_t n_rows,
                           int64_t n_columns, TileStore& store) {
  const int64_t n_blocks = (n_columns + kBlockK - 1) / kBlockK;
  const int64_t scales_offset = n_blocks * BlockBytes(format);
  const int64_t scales_bytes =
      format == WeightFormat::kInt4 ? n_blocks * kTileRows * SizeBytes(scale_dtype) : 0;
  const int64_t n_lines = (scales_offset + scales_bytes + kLineBytes - 1) / kLineBytes;
  view_ = {.format = format,
           .scale_dtype = scale_dtype,
           .n_rows = n_rows,
           .n_columns = n_columns,
           .n_tiles = (n_rows + kTileRows - 1) / kTileRows,
           .n_blocks = n_blocks,
           .tile_bytes = n_lines * kLineBytes,
           .scales_offset = scales_offset};
  const int64_t tiles_bytes = view_.n_tiles * view_.tile_bytes;
  const bool has_row_scales = format == WeightFormat::kInt8Channel;
  size_bytes_ = tiles_bytes + (has_row_scales ? view_.n_tiles * kTileRows * 4 : 0);
  data_ = store.Take(size_bytes_);
  CHECK(data_ != nullptr);
  view_.tiles = data_.get();
  if (has_row_scales) view_.row_scales = reinterpret_cast<float*>(data_.get() + tiles_bytes);
}

template <typename Fill>
void PackedWeight::FillTiles(std::byte empty, const TileStore& store, const Fill& fill) {
  if (store.is_filled()) return;
  store.pool().ParallelFor(view_.n_tiles, [&](int64_t begin, int64_t end) {
    for (int64_t tile_idx = begin; tile_idx < end; ++tile_idx) {
      std::byte* const tile = data_.get() + tile_idx * view_.tile_bytes;
      std::fill(tile, tile + view_.scales_offset, empty);
      std::fill(tile + view_.scales_offset, tile + view_.tile_bytes, std::byte{0});
      const int64_t first_row = tile_idx * kTileRows;
      for (int64_t lane = 0; lane < std::min(kTileRows, view_.n_rows - first_row); ++lane) {
        fill(tile, lane, first_row + lane);
      }
    }
  });
}

PackedWeight PackedWeight::FromBf16(std::span<const std::byte> rows, int64_t n_rows,
                                    int64_t n_columns, TileStore& store) {
  CHECK(store.is_filled() || rows.size() == static_cast<size_t>(n_rows * n_columns * 2));
  PackedWeight weight(WeightFormat::kBf16, DType::kBF16, n_rows, n_columns, store);
  weight.FillTiles(std::byte{0}, store, [&](std::byte* tile, int64_t lane, int64_t row) {
    const std::byte* const source = rows.data() + row * n_columns * 2;
    for (int64_t k = 0; k < n_columns; ++k) {
      std::memcpy(tile + (k * kTileRows + lane) * 2, source + k * 2, 2);
    }
  });
  return weight;
}

PackedWeight PackedWeight::FromInt4(std::span<const std::byte> packed,
                                    std::span<const std::byte> scales, DType scale_dtype,
                                    int64_t n_rows, int64_t n_columns, TileStore& store) {
  static_assert(kBlockK == formats::kGroupSize);
  const int64_t n_blocks = n_columns / kBlockK;
  const int64_t scale_bytes = SizeBytes(scale_dtype);
  CHECK(n_columns % kBlockK == 0);
  CHECK(store.is_filled() || packed.size() == static_cast<size_t>(n_rows * n_columns / 2));
  CHECK(store.is_filled() || scales.size() == static_cast<size_t>(n_rows * n_blocks * scale_bytes));
  PackedWeight weight(WeightFormat::kInt4, scale_dtype, n_rows, n_columns, store);
  weight.FillTiles(kZeroCodes, store, [&](std::byte* tile, int64_t lane, int64_t row) {
    const std::byte* source = packed.data() + row * n_columns / 2;
    std::byte* word = tile + lane * 4;
    for (int64_t k = 0; k < n_columns; k += 8, source += 4, word += kTileRows * 4) {
      uint32_t codes = 0;
      std::memcpy(&codes, source, sizeof codes);
      codes = TileWord(codes);
      std::memcpy(word, &codes, sizeof codes);
    }
    for (int64_t block = 0; block < n_blocks; ++block) {
      std::memcpy(tile + weight.view_.scales_offset + (block * kTileRows + lane) * scale_bytes,
                  scales.data() + (row * n_blocks + block) * scale_bytes,
                  static_cast<size_t>(scale_bytes));
    }
  });
  return weight;
}

PackedWeight PackedWeight::FromInt8Channel(std::span<const std::byte> codes,
                                           std::span<const std::byte> scales, DType scale_dtype,
                                           int64_t n_rows, int64_t n_columns, TileStore& store) {
  CHECK(store.is_filled() || codes.size() == static_cast<size_t>(n_rows * n_columns));
  CHECK(store.is_filled() || scales.size() == static_cast<size_t>(n_rows * SizeBytes(scale_dtype)));
  PackedWeight weight(WeightFormat::kInt8Channel, scale_dtype, n_rows, n_columns, store);
  std::byte* const row_scales = weight.data_.get() + weight.view_.n_tiles * weight.view_.tile_bytes;
  weight.FillTiles(std::byte{0}, store, [&](std::byte* tile, int64_t lane, int64_t row) {
    const float scale = formats::ReadScale(scales, scale_dtype, row);
    std::memcpy(row_scales + row * 4, &scale, sizeof scale);
    const std::byte* const source = codes.data() + row * n_columns;
    for (int64_t k = 0; k < n_columns; ++k) {
      tile[(k / 4 * kTileRows + lane) * 4 + k % 4] = source[k];
    }
  });
  return weight;
}

PackedWeight PackedWeight::FromFloat32(std::span<const std::byte> rows, int64_t n_rows,
                                       int64_t n_columns, TileStore& store) {
  CHECK(store.is_filled() ||
        rows.size() == static_cast<size_t>(n_rows * n_columns) * sizeof(float));
  PackedWeight weight(WeightFormat::kFloat32, DType::kF32, n_rows, n_columns, store);
  weight.FillTiles(std::byte{0}, store, [&](std::byte* tile, int64_t lane, int64_t row) {
    const std::byte* const source = rows.data() + row * n_columns * 4;
    for (int64_t k = 0; k < n_columns; ++k) {
      std::memcpy(tile + (k * kTileRows + lane) * 4, source + k * 4, 4);
    }
  });
  return weight;
}

PackedWeight PackedWeight::FromQ40(std::span<const std::byte> blocks, int64_t n_rows,
                                   int64_t n_columns, TileStore& store) {
  static_assert(kBlockK == formats::kQ40BlockSize);
  constexpr int64_t kBytes = formats::kQ40BlockBytes;
  const int64_t n_blocks = n_columns / kBlockK;
  CHECK(n_columns % kBlockK == 0);
  CHECK(store.is_filled() || blocks.size() == static_cast<size_t>(n_rows * n_blocks * kBytes));
  PackedWeight weight(WeightFormat::kInt4, DType::kF16, n_rows, n_columns, store);
  // A block: fp16 scale, then byte i with code i in its low and code i + 16 in its high nibble.
  weight.FillTiles(kZeroCodes, store, [&](std::byte* tile, int64_t lane, int64_t row) {
    for (int64_t i = 0; i < n_blocks; ++i) {
      const std::byte* const block = blocks.data() + (row * n_blocks + i) * kBytes;
      std::memcpy(tile + weight.view_.scales_offset + (i * kTileRows + lane) * 2, block, 2);
      std::byte* const words = tile + i * kInt4BlockBytes + lane * 4;
      for (int64_t k = 0; k < kBlockK; ++k) {
        const std::byte both = block[2 + k % 16];
        const std::byte code = k < 16 ? both & std::byte{15} : both >> 4;
        std::byte& place = words[k / 8 * kTileRows * 4 + k % 4];
        place = k % 8 < 4 ? (place & std::byte{0xf0}) | code : (place & std::byte{15}) | code << 4;
      }
    }
  });
  return weight;
}

PackedWeight PackedWeight::FromQ6K(std::span<const std::byte> blocks, int64_t n_rows,
                                   int64_t n_columns, TileStore& store) {
  constexpr int64_t kSize = formats::kQ6KBlockSize;
  constexpr int64_t kBytes = formats::kQ6KBlockBytes;
  static_assert(kBlockK == int64_t{2} * formats::kQ6KGroupSize);
  CHECK(n_columns % kSize == 0);
  const int64_t per_row = n_columns / kSize;
  CHECK(store.is_filled() || blocks.size() == static_cast<size_t>(n_rows * per_row * kBytes));
  PackedWeight weight(WeightFormat::kInt8, DType::kF32, n_rows, n_columns, store);
  weight.FillTiles(std::byte{0}, store, [&](std::byte* tile, int64_t lane, int64_t row) {
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
