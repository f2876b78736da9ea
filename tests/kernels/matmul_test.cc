// Scalar matmul against double arithmetic within the bound of kernels.h, and its independence of
// batch and split.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/float16.h"
#include "formats/q4_0.h"
#include "formats/q6_k.h"
#include "kernels/kernels.h"

namespace nibble::kernels {
namespace {

constexpr double kU = 0x1p-24;

const KernelTable& Kernels() { return **ChooseKernels(nullptr); }

std::vector<float> RandomFloats(size_t n, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

// A weight in both forms: packed, and as the doubles that it stands for.
struct Weight {
  PackedWeight packed;
  std::vector<double> values;  // [N, K]
};

Weight RandomBf16(int64_t n, int64_t k, int seed) {
  ThreadPool pool(2);
  std::vector<uint16_t> bits;
  Weight weight;
  for (const float value : RandomFloats(n * k, seed)) {
    bits.push_back(FloatToBf16(value));
    weight.values.push_back(Bf16ToFloat(bits.back()));
  }
  weight.packed = PackedWeight::FromBf16(std::as_bytes(std::span(bits)), n, k, pool);
  return weight;
}

Weight RandomInt4(int64_t n, int64_t k, int seed) {
  ThreadPool pool(2);
  std::mt19937 random(seed);
  std::vector<uint8_t> packed(n * k / 2);
  std::vector<uint16_t> scales;
  for (const float scale : RandomFloats(n * k / 32, seed)) scales.push_back(FloatToFp16(scale));
  Weight weight;
  for (int64_t i = 0; i < n * k; ++i) {
    const auto code = static_cast<int>(random() % 16) - 8;
    packed[i / 2] |= static_cast<uint8_t>((code + 8) << (i % 2 * 4));
    weight.values.push_back(code * static_cast<double>(Fp16ToFloat(scales[i / 32])));
  }
  weight.packed = PackedWeight::FromInt4(std::as_bytes(std::span(packed)),
                                         std::as_bytes(std::span(scales)), DType::kF16, n, k, pool);
  return weight;
}

// The same codes and scales as Q4_0 blocks.
PackedWeight AsQ40(const Weight& weight) {
  ThreadPool pool(2);
  const int64_t per_row = weight.packed.n_blocks();
  std::vector<std::byte> blocks(weight.packed.n_rows() * per_row * formats::kQ40BlockBytes);
  for (int64_t i = 0; i < weight.packed.n_rows() * per_row; ++i) {
    const int64_t row = i / per_row;
    float scale = 0;
    std::memcpy(&scale,
                weight.packed.Tile(row / kTileRows) + i % per_row * kInt4BlockBytes +
                    row % kTileRows * sizeof scale,
                sizeof scale);
    std::array<int8_t, 32> codes;
    for (int64_t k = 0; k < 32; ++k) {
      codes[k] = static_cast<int8_t>(std::lround(weight.values[i * 32 + k] / scale));
    }
    formats::PackQ40Block(codes, FloatToFp16(scale), std::span(blocks).subspan(i * 18).first<18>());
  }
  return PackedWeight::FromQ40(blocks, weight.packed.n_rows(), weight.packed.n_columns(), pool);
}

Weight RandomQ6K(int64_t n, int64_t k, int seed) {
  ThreadPool pool(2);
  const std::vector<float> floats = RandomFloats(n * k, seed);
  std::vector<std::byte> blocks(n * k / 256 * formats::kQ6KBlockBytes);
  Weight weight;
  for (int64_t i = 0; i < n * k / 256; ++i) {
    const auto block = std::span(blocks).subspan(i * 210).first<210>();
    EXPECT_TRUE(formats::QuantizeQ6KBlock(std::span(floats).subspan(i * 256).first<256>(), block));
    std::array<int8_t, 256> codes;
    std::array<float, 16> steps;
    formats::UnpackQ6KBlock(block, codes, steps);
    for (int64_t j = 0; j < 256; ++j) {
      weight.values.push_back(codes[j] * static_cast<double>(steps[j / 16]));
    }
  }
  weight.packed = PackedWeight::FromQ6K(blocks, n, k, pool);
  return weight;
}

Weight RandomFloat32(int64_t n, int64_t k, int seed) {
  ThreadPool pool(2);
  const std::vector<float> floats = RandomFloats(n * k, seed);
  Weight weight;
  weight.values.assign(floats.begin(), floats.end());
  weight.packed = PackedWeight::FromFloat32(std::as_bytes(std::span(floats)), n, k, pool);
  return weight;
}

std::vector<float> Multiply(const PackedWeight& w, const float* x, int64_t n_tokens) {
  std::vector<float> y(n_tokens * w.n_rows());
  Kernels().matmul(w, 0, w.n_tiles(), x, n_tokens, y.data());
  return y;
}

void ExpectWithinBound(const Weight& weight, int64_t n_tokens) {
  const int64_t n = weight.packed.n_rows();
  const int64_t k = weight.packed.n_columns();
  const std::vector<float> x = RandomFloats(n_tokens * k, 7);
  const std::vector<float> y = Multiply(weight.packed, x.data(), n_tokens);
  const auto length = static_cast<double>(k);
  const double roundings = weight.packed.format() == WeightFormat::kInt8
                               ? 18 + std::ceil(length / 16)
                               : 34 + std::ceil(length / 32);
  const double factor = roundings * kU / (1 - roundings * kU);
  for (int64_t t = 0; t < n_tokens; ++t) {
    for (int64_t row = 0; row < n; ++row) {
      double sum = 0;
      double size = 0;
      for (int64_t i = 0; i < k; ++i) {
        const double product = static_cast<double>(x[t * k + i]) * weight.values[row * k + i];
        sum += product;
        size += std::fabs(product);
      }
      ASSERT_LE(std::fabs(y[t * n + row] - sum), factor * size) << "t " << t << " row " << row;
    }
  }
}

TEST(Matmul, StaysWithinItsBound) {
  for (const int64_t n : {1, 16, 33}) {
    for (const int64_t n_tokens : {1, 3}) {
      for (const int64_t k : {1, 32, 40, 352}) ExpectWithinBound(RandomBf16(n, k, 1), n_tokens);
      for (const int64_t k : {1, 40, 352}) ExpectWithinBound(RandomFloat32(n, k, 11), n_tokens);
      for (const int64_t k : {256, 768}) ExpectWithinBound(RandomQ6K(n, k, 12), n_tokens);
      for (const int64_t k : {32, 352}) ExpectWithinBound(RandomInt4(n, k, 2), n_tokens);
    }
  }
}

TEST(Matmul, PicksOutEveryWeightExactly) {
  for (const Weight& weight : {RandomBf16(19, 64, 3), RandomInt4(19, 64, 4)}) {
    for (int64_t k = 0; k < 64; ++k) {
      std::vector<float> one_hot(64);
      one_hot[k] = 1;
      const std::vector<float> y = Multiply(weight.packed, one_hot.data(), 1);
      for (int64_t row = 0; row < 19; ++row) {
        ASSERT_EQ(y[row], static_cast<float>(weight.values[row * 64 + k])) << row << ", " << k;
      }
    }
  }
}

TEST(Matmul, PicksOutQ6KAndFloat32) {
  for (const Weight& weight : {RandomQ6K(19, 256, 13), RandomFloat32(19, 256, 14)}) {
    for (int64_t k = 0; k < 256; ++k) {
      std::vector<float> one_hot(256);
      one_hot[k] = 1;
      const std::vector<float> y = Multiply(weight.packed, one_hot.data(), 1);
      for (int64_t row = 0; row < 19; ++row) {
        ASSERT_EQ(y[row], static_cast<float>(weight.values[row * 256 + k])) << row << ", " << k;
      }
    }
  }
}

TEST(PackedWeight, Q40GivesTheTilesOfInt4) {
  const Weight weight = RandomInt4(32, 96, 15);
  const PackedWeight same = AsQ40(weight);
  ASSERT_EQ(same.size_bytes(), weight.packed.size_bytes());
  EXPECT_EQ(std::memcmp(same.Tile(0), weight.packed.Tile(0), same.size_bytes()), 0);
}

// 300 tokens are more than one chunk.
TEST(Matmul, GivesEachTokenWhatItGetsAlone) {
  constexpr int64_t kTokens = 300;
  for (const Weight& weight : {RandomBf16(33, 72, 5), RandomInt4(33, 96, 6)}) {
    const int64_t k = weight.packed.n_columns();
    const std::vector<float> x = RandomFloats(kTokens * k, 8);
    const std::vector<float> together = Multiply(weight.packed, x.data(), kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      const std::vector<float> alone = Multiply(weight.packed, x.data() + t * k, 1);
      ASSERT_EQ(std::memcmp(alone.data(), together.data() + t * 33, 33 * sizeof(float)), 0) << t;
    }
  }
}

TEST(Matmul, WritesOnlyTheRowsOfItsTiles) {
  const Weight weight = RandomBf16(40, 32, 9);
  const std::vector<float> x = RandomFloats(32, 10);
  const std::vector<float> whole = Multiply(weight.packed, x.data(), 1);
  std::vector<float> y(40, -1.0f);
  Kernels().matmul(weight.packed, 1, 2, x.data(), 1, y.data());
  for (int row = 0; row < 40; ++row) {
    EXPECT_EQ(y[row], row >= 16 && row < 32 ? whole[row] : -1.0f) << row;
  }
}

}  // namespace
}  // namespace nibble::kernels
