#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace nibble::kernels {
namespace {

const KernelTable& Kernels() { return **ChooseKernels(nullptr); }

TEST(QuantizeRows, EachRowByItselfHalfToEven) {
  const std::vector<float> x = {127, 2.5, -0.5, 1.5, 0, 0, 0, 0, -0.005f, 0.02f, 0, 0};
  std::vector<int8_t> codes(12);
  std::vector<float> scales(3);
  Kernels().quantize_rows(x.data(), 3, 4, codes.data(), scales.data());
  EXPECT_EQ(scales, (std::vector<float>{1, 1, 0.02f / 127}));
  EXPECT_EQ(codes, (std::vector<int8_t>{127, 2, 0, 2, 0, 0, 0, 0, -32, 127, 0, 0}));
}

// Against int64 sums; N fills no tile, K no block, and the sums pass float32's 24 bits.
TEST(MatmulInt8, IsTheIntegerSumTimesBothScales) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kColumns = 2085;
  constexpr int64_t kTokens = 3;
  std::mt19937 random(1);
  std::vector<int8_t> w(kRows * kColumns);
  std::vector<int8_t> x(kTokens * kColumns);
  for (int8_t& code : w) code = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
  for (int8_t& code : x) code = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
  std::fill_n(w.begin(), kColumns, int8_t{127});
  std::fill_n(x.begin(), kColumns, int8_t{127});
  std::vector<float> w_scales(kRows);
  for (float& scale : w_scales) scale = 0.001f + static_cast<float>(random() % 1000) * 1e-5f;
  const std::vector<float> x_scales = {0.01f, 0.3f, 2.0f};

  ThreadPool pool(1);
  const PackedWeight weight =
      PackedWeight::FromInt8Channel(std::as_bytes(std::span(w)), std::as_bytes(std::span(w_scales)),
                                    DType::kF32, kRows, kColumns, pool);
  std::vector<float> y(kTokens * kRows);
  Kernels().matmul_int8(weight, 0, 1, x.data(), x_scales.data(), kTokens, y.data());
  Kernels().matmul_int8(weight, 1, weight.n_tiles(), x.data(), x_scales.data(), kTokens, y.data());
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t n = 0; n < kRows; ++n) {
      int64_t sum = 0;
      for (int64_t k = 0; k < kColumns; ++k)
        sum += int64_t{x[t * kColumns + k]} * w[n * kColumns + k];
      EXPECT_EQ(y[t * kRows + n], static_cast<float>(sum) * x_scales[t] * w_scales[n]);
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
