// int8-channel matrices of every instruction set: inputs rounded by row, and exact integer sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/choose_kernels.h"
#include "kernels/packed_weight.h"

namespace nibble::kernels {
namespace {

TEST(QuantizeRows, EachRowByItselfHalfToEven) {
  const std::vector<float> x = {127, 2.5, -0.5, 1.5, 0, 0, 0, 0, -0.01f, 0.02f, 0, NAN};
  for (const KernelTable* kernels : AvailableKernels()) {
    std::vector<int8_t> codes(3 * 32, 99);
    std::vector<float> scales(3);
    kernels->quantize_rows(x.data(), 3, 4, codes.data(), scales.data());
    EXPECT_EQ(scales, (std::vector<float>{1, 1, 0.02f / 127})) << kernels->name;
    std::vector<int8_t> expected(3 * 32);
    std::ranges::copy(std::vector<int8_t>{127, 2, 0, 2}, expected.begin());
    std::ranges::copy(std::vector<int8_t>{-63, 127, 0, -127}, expected.begin() + 64);
    EXPECT_EQ(codes, expected) << kernels->name;
  }
}

// Too small for a scale of their own: zeros, and the padding with them.
TEST(QuantizeRows, RowsWhoseScaleWouldBeZeroAreZeros) {
  const std::vector<float> x = {0x1p-149f, -0x1p-147f, 0};
  for (const KernelTable* kernels : AvailableKernels()) {
    std::vector<int8_t> codes(32, 99);
    float scale = 0;
    kernels->quantize_rows(x.data(), 1, 3, codes.data(), &scale);
    EXPECT_EQ(scale, 1) << kernels->name;
    EXPECT_EQ(codes, std::vector<int8_t>(32)) << kernels->name;
  }
}

TEST(QuantizeRows, GivesTheSameBytesWithEveryInstructionSet) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(5 * 333);
  for (float& value : x) value = normal(random);
  x[7] = INFINITY;
  const auto run = [&](const KernelTable& kernels) {
    std::vector<int8_t> codes(5 * 352, 99);
    std::vector<float> scales(5);
    kernels.quantize_rows(x.data(), 5, 333, codes.data(), scales.data());
    return std::pair(codes, scales);
  };
  const auto expected = run(**ChooseKernels("scalar"));
  for (const KernelTable* kernels : AvailableKernels()) EXPECT_EQ(run(*kernels), expected);
}

// Against int64 sums; N fills no tile, K no block, and the sums pass float32's 24 bits.
TEST(MatmulInt8Channel, IsTheIntegerSumTimesBothScales) {
  constexpr int64_t kRows = 69;
  constexpr int64_t kColumns = 2085;
  constexpr int64_t kPadded = 2112;
  constexpr int64_t kTokens = 7;
  std::mt19937 random(1);
  std::vector<int8_t> w(kRows * kColumns);
  std::vector<int8_t> x(kTokens * kPadded);
  for (int8_t& code : w) code = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
  for (int64_t i = 0; i < kTokens * kPadded; ++i) {
    const auto code = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
    x[i] = i % kPadded < kColumns ? code : int8_t{0};
  }
  std::fill_n(w.begin(), kColumns, int8_t{-127});
  std::fill_n(w.begin() + kColumns, kColumns, int8_t{-128});
  std::fill_n(x.begin(), kColumns, int8_t{127});
  std::fill_n(x.begin() + kPadded, kColumns, int8_t{-127});
  std::vector<float> w_scales(kRows);
  for (float& scale : w_scales) scale = 0.001f + static_cast<float>(random() % 1000) * 1e-5f;
  const std::vector<float> x_scales = {0.01f, 0.3f, 2.0f, 1.0f, 0.7f, 0.1f, 0.02f};

  ThreadPool pool(1);
  TileStore store(pool);
  const PackedWeight weight =
      PackedWeight::FromInt8Channel(std::as_bytes(std::span(w)), std::as_bytes(std::span(w_scales)),
                                    DType::kF32, kRows, kColumns, store);
  for (const KernelTable* kernels : AvailableKernels()) {
    std::vector<float> y(kTokens * kRows);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 1}, {1, 5}}) {
      kernels->matmul_int8_channel(weight.view(), begin, end, x.data(), x_scales.data(), kTokens,
                                   y.data());
    }
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t n = 0; n < kRows; ++n) {
        int64_t sum = 0;
        for (int64_t k = 0; k < kColumns; ++k) {
          sum += int64_t{x[t * kPadded + k]} * w[n * kColumns + k];
        }
        EXPECT_EQ(y[t * kRows + n], static_cast<float>(sum) * x_scales[t] * w_scales[n])
            << kernels->name << " " << t << ", " << n;
      }
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
