// exp and tanh in float32 as fixed sequences of IEEE operations, so that every instruction set can
// repeat them bit by bit (libm's differ between versions). Polynomials of S. Moshier's Cephes
// library (expf.c, tanhf.c). Tested by pointwise_test.cc.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace nibble::kernels::scalar {

// e^x for x <= 88 (larger counts as 88, smaller than -87 as -87: about 1.6e-38). Relative error
// below 4 u.
inline float Exp(float x) {
  x = std::min(std::max(x, -87.0f), 88.0f);
  // n = round(x / ln 2) by the constant 1.5 * 2^23, whose unit in the last place is 1.
  constexpr float kRound = 12582912.0f;
  const float shifted = x * 1.44269504088896341f + kRound;  // n in its lowest bits
  const float n = shifted - kRound;
  x -= n * 0.693359375f;  // ln 2 in two parts, the first exact in 9 bits
  x -= n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * x + 1.3981999507e-3f;
  p = p * x + 8.3334519073e-3f;
  p = p * x + 4.1665795894e-2f;
  p = p * x + 1.6666665459e-1f;
  p = p * x + 5.0000001201e-1f;
  p = p * (x * x) + x + 1.0f;
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000u);
}

// tanh(x); relative error below 4 u.
inline float Tanh(float x) {
  const float size = std::fabs(x);
  if (size < 0.625f) {
    const float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z + -5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z + -3.33332819422e-1f;
    return p * z * x + x;
  }
  const float t = 1.0f - 2.0f / (Exp(2.0f * std::min(size, 40.0f)) + 1.0f);
  return x < 0 ? -t : t;
}

}  // namespace nibble::kernels::scalar
