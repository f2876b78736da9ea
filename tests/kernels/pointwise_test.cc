// Norms, RoPE, activations, softmax and table rows: hand-made cases, and double arithmetic within
// the bounds of kernels.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "base/float16.h"
#include "kernels/choose_kernels.h"
#include "kernels/scalar/math.h"

namespace nibble::kernels {
namespace {

constexpr double kU = 0x1p-24;

const KernelTable& Kernels() { return **ChooseKernels("scalar"); }

TEST(Exp, IsWithinFourUnitsOfDouble) {
  for (float x = -87.0f; x <= 88.0f; x += 0.00137f) {
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_LE(std::fabs(scalar::Exp(x) - exact), 4 * kU * exact) << x;
  }
  EXPECT_EQ(scalar::Exp(0.0f), 1.0f);
  EXPECT_TRUE(std::isfinite(scalar::Exp(1e30f)));
  EXPECT_GT(scalar::Exp(-1e30f), 0.0f);
}

TEST(Tanh, IsWithinFourUnitsOfDouble) {
  for (float x = 0x1p-12f; x <= 16.0f; x *= 1.0003f) {
    const double exact = std::tanh(static_cast<double>(x));
    ASSERT_LE(std::fabs(scalar::Tanh(x) - exact), 4 * kU * exact) << x;
    ASSERT_EQ(scalar::Tanh(-x), -scalar::Tanh(x)) << x;
  }
  EXPECT_EQ(scalar::Tanh(0.0f), 0.0f);
  EXPECT_EQ(scalar::Tanh(1e30f), 1.0f);
}

TEST(RmsNorm, MatchesAHandMadeCase) {
  // mean square 8, and 8 + 8 = 16: factor 1 / 4.
  const float x[] = {4, 0, 0, 4, 2, 2, 2, 2};
  const float weight[] = {1, 2, 3, -4};
  float y[8];
  Kernels().rms_norm(x, weight, 1, 4, 8.0f, y);
  EXPECT_EQ(std::vector<float>(y, y + 4), std::vector<float>({1, 0, 0, -4}));
  // Second row: mean square 4, and 4 + 12 = 16.
  Kernels().rms_norm(x + 4, nullptr, 1, 4, 12.0f, y);
  EXPECT_EQ(std::vector<float>(y, y + 4), std::vector<float>({0.5, 0.5, 0.5, 0.5}));
}

TEST(RmsNorm, StaysWithinItsBoundAndInPlace) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 100);
  for (const int width : {1, 15, 16, 100, 1536}) {
    std::vector<float> x(width);
    std::vector<float> weight(width);
    double square = 0;
    for (int i = 0; i < width; ++i) {
      x[i] = normal(random);
      weight[i] = normal(random);
      square += static_cast<double>(x[i]) * x[i];
    }
    const double factor = 1 / std::sqrt(square / width + static_cast<double>(1e-6f));
    std::vector<float> y = x;
    Kernels().rms_norm(y.data(), weight.data(), 1, width, 1e-6f, y.data());
    const double bound = (std::ceil(width / 16.0) + 12) * kU / 2 + 4 * kU + kU;
    for (int i = 0; i < width; ++i) {
      const double exact = x[i] * factor * weight[i];
      ASSERT_LE(std::fabs(y[i] - exact), bound * std::fabs(exact)) << width << ", " << i;
    }
  }
}

TEST(RmsNorm, KeepsActivationsBeyondFp16Finite) {
  const float x[] = {1e5f, -1e5f};
  float y[2];
  Kernels().rms_norm(x, nullptr, 1, 2, 1e-6f, y);
  EXPECT_NEAR(y[0], 1.0f, 1e-6f);
  EXPECT_NEAR(y[1], -1.0f, 1e-6f);
}

TEST(Rotate, TurnsTheFirstPairsOfEachHead) {
  // Two heads of 4: pairs (0, 2) and (1, 3), of which the first turns by 90 degrees.
  float x[] = {1, 2, 3, 4, 5, 6, 7, 8};
  const float cos[] = {0};
  const float sin[] = {1};
  Kernels().rotate(x, 2, 4, cos, sin, 1);
  EXPECT_EQ(std::vector<float>(x, x + 8), std::vector<float>({-3, 2, 1, 4, -7, 6, 5, 8}));
}

TEST(GeluMul, StaysWithinItsBound) {
  for (float x = -12.0f; x <= 12.0f; x += 0.0037f) {
    const float up = 3.0f;
    float y = 0;
    Kernels().gelu_mul(&x, &up, 1, &y);
    const double z = -2 * std::sqrt(2 / M_PI) * (x + 0.044715 * std::pow(x, 3));
    const double exact = x / (1 + std::exp(z)) * up;
    const double bound = (z <= 88 ? 10 + 6 * std::fabs(z) : INFINITY) * kU;
    if (z <= 88) {
      ASSERT_LE(std::fabs(y - exact), bound * std::fabs(exact)) << x;
    } else {
      ASSERT_LE(std::fabs(y), 0x1p-120) << x;
    }
  }
}

TEST(Softcap, StaysWithinItsBound) {
  for (float x = -400.0f; x <= 400.0f; x += 0.0371f) {
    float y = x;
    Kernels().softcap(&y, 1, 30.0f);
    const double exact = 30 * std::tanh(x / 30.0);
    ASSERT_LE(std::fabs(y - exact), 8 * kU * std::fabs(exact)) << x;
  }
}

TEST(Softmax, StaysWithinItsBound) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 10);
  for (const int n : {1, 6, 16, 128}) {
    std::vector<float> x(n);
    for (float& value : x) value = normal(random);
    std::vector<double> exact;
    const double max = *std::ranges::max_element(x);
    double sum = 0;
    for (const float value : x) sum += exact.emplace_back(std::exp(value - max));
    std::vector<float> y = x;
    Kernels().softmax(y.data(), n);
    for (int i = 0; i < n; ++i) {
      const double bound = (std::ceil(n / 16.0) + 14 + 2 * (max - x[i])) * kU * 1.001;
      ASSERT_LE(std::fabs(y[i] - exact[i] / sum), bound * exact[i] / sum) << n << ", " << i;
    }
  }
}

TEST(Gather, ReadsUnalignedBf16Rows) {
  std::byte bytes[5];
  const uint16_t bits[] = {FloatToBf16(1.5f), FloatToBf16(-2.0f)};
  std::memcpy(bytes + 1, bits, sizeof bits);
  float y[2];
  Kernels().gather_bf16(bytes + 1, 2, 4.0f, y);
  EXPECT_EQ(y[0], 6.0f);
  EXPECT_EQ(y[1], -8.0f);
}

TEST(Gather, ReadsInt4RowsByGroup) {
  // Two groups: codes -8 .. 7 twice over, and all 3.
  std::vector<uint8_t> packed;
  for (int i = 0; i < 16; ++i)
    packed.push_back(static_cast<uint8_t>((2 * i % 16) | ((2 * i + 1) % 16 << 4)));
  packed.insert(packed.end(), 16, 0xbb);
  const uint16_t scales[] = {FloatToBf16(-0.5f), FloatToBf16(2.0f)};
  float y[64];
  Kernels().gather_int4(std::as_bytes(std::span(packed)).data(),
                        std::as_bytes(std::span(scales)).data(), DType::kBF16, 64, 4.0f, y);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(y[i], static_cast<float>((i % 16) - 8) * -0.5f * 4.0f) << i;
    EXPECT_EQ(y[32 + i], 3 * 2.0f * 4.0f) << i;
  }
}

// The same function of every instruction set gives the same bytes; n has tails.
TEST(EveryTable, ComputesAsScalarDoes) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 8);
  for (const KernelTable* kernels : AvailableKernels()) {
    for (const int n : {1, 15, 16, 17, 100, 1536}) {
      std::vector<float> x(2 * n);
      std::vector<float> weight(2 * n);
      for (float& value : x) value = normal(random);
      for (float& value : weight) value = normal(random);
      if (n > 16) x[3] = 200, x[5] = -200, x[7] = 0, x[9] = -0.0f;
      const auto run = [&](const KernelTable& table) {
        std::vector<float> all;
        std::vector<float> y(2 * n);
        const auto keep = [&] { all.insert(all.end(), y.begin(), y.end()); };
        table.rms_norm(x.data(), weight.data(), 2, n, 1e-6f, y.data());
        keep();
        table.rms_norm(x.data(), nullptr, 2, n, 1e-6f, y.data());
        keep();
        table.gelu_mul(x.data(), weight.data(), 2 * n, y.data());
        keep();
        y = x;
        table.softcap(y.data(), 2 * n, 30.0f);
        keep();
        y = x;
        table.softmax(y.data(), 2 * n);
        keep();
        y = x;
        table.rotate(y.data(), 2, n, weight.data(), weight.data() + n, n / 2);
        keep();
        return all;
      };
      const std::vector<float> expected = run(Kernels());
      const std::vector<float> found = run(*kernels);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i]))
            << kernels->name << ", n " << n << ", op " << i / (2 * n) << ", " << i % (2 * n);
      }
    }
  }
}

}  // namespace
}  // namespace nibble::kernels
