// y = x w^T over tiles of 16 rows: a block of 32 k is unpacked once, then used for every token of a
// chunk.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "formats/int4_group32.h"
#include "kernels/scalar/lanes.h"
#include "kernels/scalar/scalar.h"

namespace nibble::kernels::scalar {
namespace {

// Tokens that share an unpacked block: their sums (16 KiB) and the block (2 KiB) stay in L1.
constexpr int64_t kChunkTokens = 256;

constexpr int64_t kHalfK = kBlockK / 2;

// A block of a tile: values (bf16, f32) or codes (int4, int8), and the rows' scales (int8: of each
// half).
template <typename T>
struct Block {
  T values[kBlockK][kTileRows];
  float scales[2][kTileRows];
};

const std::byte* Tile(const WeightView& w, int64_t tile_idx) {
  return w.tiles + tile_idx * w.tile_bytes;
}

void UnpackBf16(const std::byte* bytes, Block<float>& block) {
  const auto* bits = reinterpret_cast<const uint16_t*>(bytes);
  for (int64_t k = 0; k < kBlockK; ++k) {
    for (int64_t row = 0; row < kTileRows; ++row) {
      block.values[k][row] =
          std::bit_cast<float>(static_cast<uint32_t>(bits[k * kTileRows + row]) << 16);
    }
  }
}

template <typename T>
void UnpackInt4(const WeightView& w, int64_t tile_idx, int64_t block_idx, Block<T>& block) {
  const std::byte* bytes = Tile(w, tile_idx) + block_idx * kInt4BlockBytes;
  const std::span<const std::byte> scales(
      Tile(w, tile_idx) + w.scales_offset,
      static_cast<size_t>(w.n_blocks * kTileRows * SizeBytes(w.scale_dtype)));
  for (int64_t row = 0; row < kTileRows; ++row) {
    block.scales[0][row] = formats::ReadScale(scales, w.scale_dtype, block_idx * kTileRows + row);
    for (int64_t k = 0; k < kBlockK; ++k) {
      const auto both = static_cast<int>(bytes[(k / 8 * kTileRows + row) * 4 + k % 4]);
      block.values[k][row] = static_cast<T>((k % 8 < 4 ? both & 15 : both >> 4) - 8);
    }
  }
}

void UnpackInt8(const std::byte* bytes, Block<float>& block) {
  std::memcpy(block.scales, bytes, sizeof block.scales);
  const auto* codes = reinterpret_cast<const int8_t*>(bytes + sizeof block.scales);
  for (int64_t k = 0; k < kBlockK; ++k) {
    for (int64_t row = 0; row < kTileRows; ++row) {
      block.values[k][row] = static_cast<float>(codes[k * kTileRows + row]);
    }
  }
}

void Unpack(const WeightView& w, int64_t tile_idx, int64_t block_idx, Block<float>& block) {
  const std::byte* tile = Tile(w, tile_idx);
  switch (w.format) {
    case WeightFormat::kBf16:
      return UnpackBf16(tile + block_idx * kBf16BlockBytes, block);
    case WeightFormat::kInt4:
      return UnpackInt4(w, tile_idx, block_idx, block);
    case WeightFormat::kInt8:
      return UnpackInt8(tile + block_idx * kInt8BlockBytes, block);
    case WeightFormat::kFloat32:
      std::memcpy(block.values, tile + block_idx * kFloat32BlockBytes, sizeof block.values);
      return;
    case WeightFormat::kInt8Channel:
      break;
  }
  CHECK(false);
}

// sums[row] and the products of k in [begin, end), scaled if `scales` is not null.
void AddProducts(const Block<float>& block, const float* x, int64_t begin, int64_t end,
                 const float* scales, float* sums) {
  float part[kTileRows] = {};
  for (int64_t k = begin; k < end; ++k) {
    for (int64_t row = 0; row < kTileRows; ++row) {
      part[row] = std::fma(x[k], block.values[k][row], part[row]);
    }
  }
  for (int64_t row = 0; row < kTileRows; ++row) {
    sums[row] =
        scales == nullptr ? sums[row] + part[row] : std::fma(part[row], scales[row], sums[row]);
  }
}

void AddBlock(const Block<float>& block, WeightFormat format, const float* x, int64_t n_k,
              float* sums) {
  if (format == WeightFormat::kInt8) {
    AddProducts(block, x, 0, kHalfK, block.scales[0], sums);
    AddProducts(block, x, kHalfK, kBlockK, block.scales[1], sums);
  } else {
    const float* scales = format == WeightFormat::kInt4 ? block.scales[0] : nullptr;
    AddProducts(block, x, 0, n_k, scales, sums);
  }
}

template <typename T>
void AddBlock(const Block<int>& block, const T* x, float x_scale, float* sums) {
  int part[kTileRows] = {};
  for (int64_t k = 0; k < kBlockK; ++k) {
    for (int64_t row = 0; row < kTileRows; ++row) part[row] += x[k] * block.values[k][row];
  }
  for (int64_t row = 0; row < kTileRows; ++row) {
    sums[row] = std::fma(static_cast<float>(part[row]) * x_scale, block.scales[0][row], sums[row]);
  }
}

// For every tile and chunk of tokens: add_block(tile, block, token, sums) per block and token,
// after unpack(tile, block).
template <typename Unpack, typename Add>
void Multiply(const WeightView& w, int64_t tile_begin, int64_t tile_end, int64_t n_tokens, float* y,
              const Unpack& unpack, const Add& add_block) {
  float sums[kChunkTokens][kTileRows];
  for (int64_t tile_idx = tile_begin; tile_idx < tile_end; ++tile_idx) {
    const int64_t first_row = tile_idx * kTileRows;
    const int64_t n_rows = std::min(kTileRows, w.n_rows - first_row);
    for (int64_t first = 0; first < n_tokens; first += kChunkTokens) {
      const int64_t n_chunk = std::min(kChunkTokens, n_tokens - first);
      std::memset(sums, 0, sizeof sums[0] * static_cast<size_t>(n_chunk));
      for (int64_t block_idx = 0; block_idx < w.n_blocks; ++block_idx) {
        unpack(tile_idx, block_idx);
        for (int64_t t = 0; t < n_chunk; ++t) add_block(block_idx, first + t, sums[t]);
      }
      for (int64_t t = 0; t < n_chunk; ++t) {
        std::copy_n(sums[t], n_rows, y + (first + t) * w.n_rows + first_row);
      }
    }
  }
}

template <typename T>
void MultiplyRounded(const WeightView& w, int64_t tile_begin, int64_t tile_end,
                     const RoundedRows<T>& x, int64_t n_tokens, float* y) {
  Block<int> block;
  Multiply(
      w, tile_begin, tile_end, n_tokens, y,
      [&](int64_t tile_idx, int64_t block_idx) { UnpackInt4(w, tile_idx, block_idx, block); },
      [&](int64_t block_idx, int64_t t, float* sums) {
        const int64_t at = t * w.n_blocks + block_idx;
        AddBlock(block, x.values + at * kBlockK, x.scales[at], sums);
      });
}

// Into -peak .. peak; NaN to -peak.
float Limit(float value, float peak) {
  value = value > -peak ? value : -peak;
  return value < peak ? value : peak;
}

template <typename T>
void Quantize(const float* x, int64_t n_rows, int64_t n_columns, const RoundedRows<T>& rows) {
  constexpr float kPeak = std::numeric_limits<T>::max();
  const int64_t n_blocks = (n_columns + kBlockK - 1) / kBlockK;
  for (int64_t i = 0; i < n_rows * n_blocks; ++i) {
    const float* block = x + i / n_blocks * n_columns + i % n_blocks * kBlockK;
    const int64_t n = std::min(kBlockK, n_columns - i % n_blocks * kBlockK);
    float largest = 0;
    for (int64_t k = 0; k < n; ++k) largest = std::max(largest, std::fabs(block[k]));
    if (largest < kLeastPeak) largest = 0;
    const float inverse = largest == 0 ? 0.0f : kPeak / largest;
    int32_t sum = 0;
    for (int64_t k = 0; k < kBlockK; ++k) {
      const auto value =
          static_cast<T>(k < n ? Limit(std::nearbyint(block[k] * inverse), kPeak) : 0);
      rows.values[i * kBlockK + k] = value;
      sum += value;
    }
    rows.scales[i] = largest / kPeak;
    rows.offsets[i] = -8 * sum;
  }
}

}  // namespace

void Matmul(const WeightView& w, int64_t tile_begin, int64_t tile_end, const float* x,
            int64_t n_tokens, float* y) {
  Block<float> block;
  Multiply(
      w, tile_begin, tile_end, n_tokens, y,
      [&](int64_t tile_idx, int64_t block_idx) { Unpack(w, tile_idx, block_idx, block); },
      [&](int64_t block_idx, int64_t t, float* sums) {
        const int64_t k = block_idx * kBlockK;
        AddBlock(block, w.format, x + t * w.n_columns + k, std::min(kBlockK, w.n_columns - k),
                 sums);
      });
}

void MatmulInt8(const WeightView& w, int64_t tile_begin, int64_t tile_end, const Int8Rows& x,
                int64_t n_tokens, float* y) {
  MultiplyRounded(w, tile_begin, tile_end, x, n_tokens, y);
}

void MatmulInt16(const WeightView& w, int64_t tile_begin, int64_t tile_end, const Int16Rows& x,
                 int64_t n_tokens, float* y) {
  MultiplyRounded(w, tile_begin, tile_end, x, n_tokens, y);
}

void QuantizeInt8(const float* x, int64_t n_rows, int64_t n_columns, const Int8Rows& rows) {
  Quantize(x, n_rows, n_columns, rows);
}

void QuantizeInt16(const float* x, int64_t n_rows, int64_t n_columns, const Int16Rows& rows) {
  Quantize(x, n_rows, n_columns, rows);
}

}  // namespace nibble::kernels::scalar
