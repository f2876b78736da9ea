// y = x w^T over tiles of 16 rows: a block of 32 k is turned into floats once, then used for every
// token of a chunk.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/scalar/lanes.h"
#include "kernels/scalar/scalar.h"

namespace nibble::kernels::scalar {
namespace {

// Tokens that share an unpacked block: their sums (16 KiB) and the block (2 KiB) stay in L1.
constexpr int64_t kChunkTokens = 256;

constexpr int64_t kHalfK = kBlockK / 2;

// A block of a tile as floats: values (bf16, f32) or codes (int4, int8), and what the block's sum
// (int8: that of each half) is multiplied by.
struct Block {
  float values[kBlockK][kTileRows];
  float scales[2][kTileRows];
};

void UnpackBf16(const std::byte* bytes, Block& block) {
  const auto* bits = reinterpret_cast<const uint16_t*>(bytes);
  for (int64_t k = 0; k < kBlockK; ++k) {
    for (int64_t row = 0; row < kTileRows; ++row) {
      block.values[k][row] =
          std::bit_cast<float>(static_cast<uint32_t>(bits[k * kTileRows + row]) << 16);
    }
  }
}

void UnpackInt4(const std::byte* bytes, Block& block) {
  std::memcpy(block.scales[0], bytes, sizeof block.scales[0]);
  const auto* pairs = reinterpret_cast<const uint8_t*>(bytes + sizeof block.scales[0]);
  for (int64_t pair = 0; pair < kBlockK / 2; ++pair) {
    for (int64_t row = 0; row < kTileRows; ++row) {
      const int both = pairs[pair * kTileRows + row];
      block.values[2 * pair][row] = static_cast<float>((both & 15) - 8);
      block.values[2 * pair + 1][row] = static_cast<float>((both >> 4) - 8);
    }
  }
}

void UnpackInt8(const std::byte* bytes, Block& block) {
  std::memcpy(block.scales, bytes, sizeof block.scales);
  const auto* codes = reinterpret_cast<const int8_t*>(bytes + sizeof block.scales);
  for (int64_t k = 0; k < kBlockK; ++k) {
    for (int64_t row = 0; row < kTileRows; ++row) {
      block.values[k][row] = static_cast<float>(codes[k * kTileRows + row]);
    }
  }
}

template <WeightFormat kFormat>
void Unpack(const std::byte* bytes, Block& block) {
  if constexpr (kFormat == WeightFormat::kBf16) UnpackBf16(bytes, block);
  if constexpr (kFormat == WeightFormat::kInt4) UnpackInt4(bytes, block);
  if constexpr (kFormat == WeightFormat::kInt8) UnpackInt8(bytes, block);
  if constexpr (kFormat == WeightFormat::kFloat32) {
    std::memcpy(block.values, bytes, sizeof block.values);
  }
}

// sums[row] += the products of x[begin .. end) and the block, scaled if `scales` is not null.
void AddProducts(const Block& block, const float* x, int64_t begin, int64_t end,
                 const float* scales, float* sums) {
  Lanes part;
  for (int64_t k = begin; k < end; ++k) part.AddProduct(x[k], block.values[k]);
  if (scales != nullptr) part.Multiply(scales);
  part.AddTo(sums);
}

// sums[row] += the block's part of the dot products with x, of which n_k values exist.
template <WeightFormat kFormat>
void AddBlock(const Block& block, const float* x, int64_t n_k, float* sums) {
  if constexpr (kFormat == WeightFormat::kInt8) {
    AddProducts(block, x, 0, kHalfK, block.scales[0], sums);
    AddProducts(block, x, kHalfK, kBlockK, block.scales[1], sums);
  } else {
    AddProducts(block, x, 0, n_k, kFormat == WeightFormat::kInt4 ? block.scales[0] : nullptr, sums);
  }
}

template <WeightFormat kFormat>
void MultiplyTile(const PackedWeight& w, int64_t tile_idx, const float* x, int64_t n_tokens,
                  float* y) {
  const int64_t n_columns = w.n_columns();
  const int64_t first_row = tile_idx * kTileRows;
  const int64_t n_rows = std::min(kTileRows, w.n_rows() - first_row);
  float sums[kChunkTokens][kTileRows];
  Block block;
  for (int64_t first = 0; first < n_tokens; first += kChunkTokens) {
    const int64_t n_chunk = std::min(kChunkTokens, n_tokens - first);
    std::memset(sums, 0, sizeof sums[0] * static_cast<size_t>(n_chunk));
    const std::byte* bytes = w.Tile(tile_idx);
    for (int64_t k = 0; k < n_columns; k += kBlockK, bytes += w.block_bytes()) {
      Unpack<kFormat>(bytes, block);
      const int64_t n_k = std::min(kBlockK, n_columns - k);
      for (int64_t t = 0; t < n_chunk; ++t) {
        AddBlock<kFormat>(block, x + (first + t) * n_columns + k, n_k, sums[t]);
      }
    }
    for (int64_t t = 0; t < n_chunk; ++t) {
      std::copy_n(sums[t], n_rows, y + (first + t) * w.n_rows() + first_row);
    }
  }
}

}  // namespace

void Matmul(const PackedWeight& w, int64_t tile_begin, int64_t tile_end, const float* x,
            int64_t n_tokens, float* y) {
  for (int64_t tile_idx = tile_begin; tile_idx < tile_end; ++tile_idx) {
    switch (w.format()) {
      case WeightFormat::kBf16:
        MultiplyTile<WeightFormat::kBf16>(w, tile_idx, x, n_tokens, y);
        break;
      case WeightFormat::kInt4:
        MultiplyTile<WeightFormat::kInt4>(w, tile_idx, x, n_tokens, y);
        break;
      case WeightFormat::kInt8:
        MultiplyTile<WeightFormat::kInt8>(w, tile_idx, x, n_tokens, y);
        break;
      case WeightFormat::kInt8Channel:
        CHECK(false);  // takes matmul_int8
      case WeightFormat::kFloat32:
        MultiplyTile<WeightFormat::kFloat32>(w, tile_idx, x, n_tokens, y);
        break;
    }
  }
}

}  // namespace nibble::kernels::scalar
