// Scalar matmul against double arithmetic within the bounds of kernels.h, its independence of batch
// and split, and every other instruction set against scalar, byte by byte.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"
#include "formats/q4_0.h"
#include "formats/q6_k.h"
#include "kernels/choose_kernels.h"
#include "kernels/packed_weight.h"

namespace nibble::kernels {
namespace {

constexpr double kU = 0x1p-24;

const KernelTable& Scalar() { return **ChooseKernels("scalar"); }

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
  TileStore store(pool);
  std::vector<uint16_t> bits;
  Weight weight;
  for (const float value : RandomFloats(n * k, seed)) {
    bits.push_back(FloatToBf16(value));
    weight.values.push_back(Bf16ToFloat(bits.back()));
  }
  weight.packed = PackedWeight::FromBf16(std::as_bytes(std::span(bits)), n, k, store);
  return weight;
}

Weight RandomInt4(int64_t n, int64_t k, int seed) {
  ThreadPool pool(2);
  TileStore store(pool);
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
  weight.packed = PackedWeight::FromInt4(
      std::as_bytes(std::span(packed)), std::as_bytes(std::span(scales)), DType::kF16, n, k, store);
  return weight;
}

// The same codes and scales as Q4_0 blocks.
PackedWeight AsQ40(const Weight& weight) {
  ThreadPool pool(2);
  TileStore store(pool);
  const WeightView& view = weight.packed.view();
  std::vector<std::byte> blocks(view.n_rows * view.n_blocks * formats::kQ40BlockBytes);
  for (int64_t i = 0; i < view.n_rows * view.n_blocks; ++i) {
    const int64_t row = i / view.n_blocks;
    uint16_t scale = 0;
    std::memcpy(&scale,
                view.tiles + row / kTileRows * view.tile_bytes + view.scales_offset +
                    (i % view.n_blocks * kTileRows + row % kTileRows) * 2,
                sizeof scale);
    std::array<int8_t, 32> codes;
    for (int64_t k = 0; k < 32; ++k) {
      codes[k] = static_cast<int8_t>(std::lround(weight.values[i * 32 + k] / Fp16ToFloat(scale)));
    }
    formats::PackQ40Block(codes, scale, std::span(blocks).subspan(i * 18).first<18>());
  }
  return PackedWeight::FromQ40(blocks, view.n_rows, view.n_columns, store);
}

Weight RandomQ6K(int64_t n, int64_t k, int seed) {
  ThreadPool pool(2);
  TileStore store(pool);
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
  weight.packed = PackedWeight::FromQ6K(blocks, n, k, store);
  return weight;
}

Weight RandomFloat32(int64_t n, int64_t k, int seed) {
  ThreadPool pool(2);
  TileStore store(pool);
  const std::vector<float> floats = RandomFloats(n * k, seed);
  Weight weight;
  weight.values.assign(floats.begin(), floats.end());
  weight.packed = PackedWeight::FromFloat32(std::as_bytes(std::span(floats)), n, k, store);
  return weight;
}

std::vector<float> Multiply(const PackedWeight& w, const float* x, int64_t n_tokens,
                            const KernelTable& kernels = Scalar()) {
  std::vector<float> y(n_tokens * w.view().n_rows);
  kernels.matmul(w.view(), 0, w.view().n_tiles, x, n_tokens, y.data());
  return y;
}

void Quantize(const KernelTable& kernels, const float* x, int64_t n_tokens, int64_t n_columns,
              const Int8Rows& rows) {
  kernels.quantize_int8(x, n_tokens, n_columns, rows);
}
void Quantize(const KernelTable& kernels, const float* x, int64_t n_tokens, int64_t n_columns,
              const Int16Rows& rows) {
  kernels.quantize_int16(x, n_tokens, n_columns, rows);
}

// Rows of activations rounded to T.
template <typename T>
struct Rounded {
  Rounded(const std::vector<float>& x, int64_t n_columns, const KernelTable& kernels = Scalar())
      : n_tokens(std::ssize(x) / n_columns),
        n_blocks((n_columns + kBlockK - 1) / kBlockK),
        values(n_tokens * n_blocks * kBlockK, 99),
        scales(n_tokens * n_blocks),
        offsets(n_tokens * n_blocks) {
    Quantize(kernels, x.data(), n_tokens, n_columns, rows());
  }

  RoundedRows<T> rows() { return {values.data(), scales.data(), offsets.data()}; }

  int64_t n_tokens;
  int64_t n_blocks;
  std::vector<T> values;
  std::vector<float> scales;
  std::vector<int32_t> offsets;
};

std::vector<float> Multiply(const PackedWeight& w, Rounded<int8_t>& x,
                            const KernelTable& kernels = Scalar()) {
  std::vector<float> y(x.n_tokens * w.view().n_rows);
  kernels.matmul_int8(w.view(), 0, w.view().n_tiles, x.rows(), x.n_tokens, y.data());
  return y;
}
std::vector<float> Multiply(const PackedWeight& w, Rounded<int16_t>& x,
                            const KernelTable& kernels = Scalar()) {
  std::vector<float> y(x.n_tokens * w.view().n_rows);
  kernels.matmul_int16(w.view(), 0, w.view().n_tiles, x.rows(), x.n_tokens, y.data());
  return y;
}

void ExpectWithinBound(const Weight& weight, int64_t n_tokens) {
  const int64_t n = weight.packed.view().n_rows;
  const int64_t k = weight.packed.view().n_columns;
  const std::vector<float> x = RandomFloats(n_tokens * k, 7);
  const std::vector<float> y = Multiply(weight.packed, x.data(), n_tokens);
  const auto length = static_cast<double>(k);
  const double roundings = weight.packed.view().format == WeightFormat::kInt8
                               ? 17 + std::ceil(length / 16)
                               : 33 + std::ceil(length / 32);
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
  EXPECT_EQ(std::memcmp(same.view().tiles, weight.packed.view().tiles, same.size_bytes()), 0);
}

// 300 tokens are more than one chunk.
TEST(Matmul, GivesEachTokenWhatItGetsAlone) {
  constexpr int64_t kTokens = 300;
  for (const Weight& weight : {RandomBf16(33, 72, 5), RandomInt4(33, 96, 6)}) {
    const int64_t k = weight.packed.view().n_columns;
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
  Scalar().matmul(weight.packed.view(), 1, 2, x.data(), 1, y.data());
  for (int row = 0; row < 40; ++row) {
    EXPECT_EQ(y[row], row >= 16 && row < 32 ? whole[row] : -1.0f) << row;
  }
}

template <typename T>
void ExpectBlocksRoundedToTheirPeak() {
  constexpr double kPeak = std::numeric_limits<T>::max();
  std::vector<float> x = RandomFloats(3 * 72, 11);
  for (int i = 32; i < 64; ++i) x[i] = 0;
  x[64] = 0x1p-101f;
  std::fill(x.begin() + 65, x.begin() + 72, 0.0f);
  const Rounded<T> rounded(x, 72);
  for (int64_t i = 0; i < 9; ++i) {
    const float* block = x.data() + i / 3 * 72 + i % 3 * 32;
    const int n = i % 3 == 2 ? 8 : 32;
    double peak = 0;
    for (int k = 0; k < n; ++k) peak = std::max(peak, std::fabs(static_cast<double>(block[k])));
    if (peak < kLeastPeak) peak = 0;
    ASSERT_FLOAT_EQ(rounded.scales[i], static_cast<float>(peak / kPeak));
    int sum = 0;
    for (int k = 0; k < 32; ++k) {
      const int value = rounded.values[i * 32 + k];
      sum += value;
      const double exact = k < n && peak > 0 ? block[k] * kPeak / peak : 0;
      // Half a step, and what two float roundings add.
      ASSERT_LE(std::fabs(exact - value), 0.5 + kPeak * 3 * kU);
    }
    ASSERT_EQ(rounded.offsets[i], -8 * sum);
  }
  EXPECT_EQ(rounded.scales[1], 0);
  EXPECT_EQ(rounded.scales[2], 0);
}

TEST(Quantize, RoundsBlocksToTheirPeak) {
  ExpectBlocksRoundedToTheirPeak<int8_t>();
  ExpectBlocksRoundedToTheirPeak<int16_t>();
}

TEST(Quantize, RoundsTiesToEvenAndKeepsPeaks) {
  std::vector<float> x(32, 0.0f);
  x[0] = -127;
  x[1] = 0.5f;
  x[2] = 1.5f;
  x[3] = -2.5f;
  x[4] = 127;
  x[5] = NAN;
  const Rounded<int8_t> int8(x, 32);
  EXPECT_EQ(std::vector(int8.values.begin(), int8.values.begin() + 6),
            (std::vector<int8_t>{-127, 0, 2, -2, 127, -127}));
  x[0] = -32767;
  x[4] = 32767;
  const Rounded<int16_t> int16(x, 32);
  EXPECT_EQ(std::vector(int16.values.begin(), int16.values.begin() + 6),
            (std::vector<int16_t>{-32767, 0, 2, -2, 32767, -32767}));
}

template <typename T>
void ExpectRoundedWithinBound() {
  for (const int64_t n : {1, 33}) {
    for (const int64_t k : {32, 352}) {
      const Weight weight = RandomInt4(n, k, 12);
      Rounded<T> x(RandomFloats(3 * k, 13), k);
      const std::vector<float> y = Multiply(weight.packed, x);
      const double roundings = 2 + static_cast<double>(k) / 32;
      for (int64_t i = 0; i < 3 * n; ++i) {
        double sum = 0;
        double size = 0;
        for (int64_t block = 0; block < k / 32; ++block) {
          double part = 0;
          for (int64_t j = block * 32; j < block * 32 + 32; ++j) {
            part += x.values[i / n * k + j] * weight.values[i % n * k + j];
          }
          part *= x.scales[i / n * (k / 32) + block];
          sum += part;
          size += std::fabs(part);
        }
        ASSERT_LE(std::fabs(y[i] - sum), roundings * kU / (1 - roundings * kU) * size) << i;
      }
    }
  }
}

TEST(MatmulInt8, StaysWithinItsBound) { ExpectRoundedWithinBound<int8_t>(); }
TEST(MatmulInt16, StaysWithinItsBound) { ExpectRoundedWithinBound<int16_t>(); }

// Every instruction set of this machine. Shapes with tails: rows, tokens and K that no tile, no
// group of tiles and no group of tokens divides.
class EveryTable : public ::testing::TestWithParam<const KernelTable*> {};

void ExpectSameBytes(const std::vector<float>& a, const std::vector<float>& b, const char* what,
                     const WeightView& w, int64_t n_tokens) {
  ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0)
      << what << " N " << w.n_rows << " K " << w.n_columns << " tokens " << n_tokens;
}

TEST_P(EveryTable, MultipliesAsScalarDoes) {
  for (const int64_t n : {1, 16, 33, 129, 144, 171}) {
    for (const int64_t k : {1, 40, 96, 352}) {
      const Weight bf16 = RandomBf16(n, k, 14);
      const Weight int4 = RandomInt4(n, (k + 31) / 32 * 32, 15);
      for (const int64_t n_tokens : {1, 2, 3, 4, 7, 17, 131}) {
        for (const Weight* weight : {&bf16, &int4}) {
          const WeightView& w = weight->packed.view();
          const std::vector<float> x = RandomFloats(n_tokens * w.n_columns, 16);
          ExpectSameBytes(Multiply(weight->packed, x.data(), n_tokens),
                          Multiply(weight->packed, x.data(), n_tokens, *GetParam()), "float", w,
                          n_tokens);
          if (weight == &bf16) continue;
          Rounded<int8_t> int8(x, w.n_columns);
          ExpectSameBytes(Multiply(weight->packed, int8),
                          Multiply(weight->packed, int8, *GetParam()), "int8", w, n_tokens);
          Rounded<int16_t> int16(x, w.n_columns);
          ExpectSameBytes(Multiply(weight->packed, int16),
                          Multiply(weight->packed, int16, *GetParam()), "int16", w, n_tokens);
        }
      }
    }
  }
}

TEST_P(EveryTable, MultipliesRareFormatsAsScalarDoes) {
  for (const Weight& weight : {RandomQ6K(19, 512, 18), RandomFloat32(19, 40, 19)}) {
    const WeightView& w = weight.packed.view();
    const std::vector<float> x = RandomFloats(5 * w.n_columns, 20);
    ExpectSameBytes(Multiply(weight.packed, x.data(), 5),
                    Multiply(weight.packed, x.data(), 5, *GetParam()), "float", w, 5);
  }
}

// The largest sums that products of whole numbers can have, and scales of every type.
TEST_P(EveryTable, MultipliesTheLargestValuesAsScalarDoes) {
  constexpr int64_t kRows = 19;
  constexpr int64_t kColumns = 64;
  ThreadPool pool(1);
  TileStore store(pool);
  std::vector<float> x = RandomFloats(6 * kColumns, 21);
  for (size_t i = 0; i < 4 * kColumns; ++i) x[i] = i / kColumns % 2 == 0 ? 1.5f : -1.5f;
  for (size_t i = 2 * kColumns; i < 4 * kColumns; i += 4) x[i] = x[i + 1] = -x[i + 2];
  const std::vector<float> scales = RandomFloats(kRows * 2, 22);
  std::vector<uint16_t> bf16_scales;
  for (const float scale : scales) bf16_scales.push_back(FloatToBf16(scale));
  for (const auto codes : std::to_array<uint8_t>({0x00, 0xff, 0xf0, 0x88})) {
    const std::vector<uint8_t> packed(kRows * kColumns / 2, codes);
    const auto bytes = std::as_bytes(std::span(packed));
    for (const PackedWeight& w :
         {PackedWeight::FromInt4(bytes, std::as_bytes(std::span(scales)), DType::kF32, kRows,
                                 kColumns, store),
          PackedWeight::FromInt4(bytes, std::as_bytes(std::span(bf16_scales)), DType::kBF16, kRows,
                                 kColumns, store)}) {
      Rounded<int8_t> int8(x, kColumns);
      ExpectSameBytes(Multiply(w, int8), Multiply(w, int8, *GetParam()), "int8", w.view(), 6);
      Rounded<int16_t> int16(x, kColumns);
      ExpectSameBytes(Multiply(w, int16), Multiply(w, int16, *GetParam()), "int16", w.view(), 6);
      ExpectSameBytes(Multiply(w, x.data(), 6), Multiply(w, x.data(), 6, *GetParam()), "float",
                      w.view(), 6);
    }
  }
}

template <typename T>
void ExpectQuantizesAsScalarDoes(const KernelTable& kernels) {
  std::vector<float> x = RandomFloats(7 * 200, 17);
  std::fill(x.begin() + 32, x.begin() + 64, 0.0f);
  x[70] = NAN;
  x[100] = INFINITY;
  x[200] = -INFINITY;
  std::fill(x.begin() + 400, x.begin() + 432, 0x1p-120f);
  for (const int64_t k : {1, 8, 25, 35, 40, 56, 100, 200}) {
    const Rounded<T> expected(x, k);
    const Rounded<T> found(x, k, kernels);
    EXPECT_EQ(found.values, expected.values) << k;
    EXPECT_EQ(found.offsets, expected.offsets) << k;
    EXPECT_EQ(std::memcmp(found.scales.data(), expected.scales.data(),
                          expected.scales.size() * sizeof(float)),
              0)
        << k;
  }
}

TEST_P(EveryTable, QuantizesAsScalarDoes) {
  ExpectQuantizesAsScalarDoes<int8_t>(*GetParam());
  ExpectQuantizesAsScalarDoes<int16_t>(*GetParam());
}

INSTANTIATE_TEST_SUITE_P(Kernels, EveryTable, ::testing::ValuesIn(AvailableKernels()),
                         [](const auto& table) { return std::string(table.param->name); });

}  // namespace
}  // namespace nibble::kernels
