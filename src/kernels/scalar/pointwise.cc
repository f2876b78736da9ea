// Norms, RoPE, activations and softmax: one row or one value at a time.
#include <cmath>

#include "kernels/scalar/lanes.h"
#include "kernels/scalar/math.h"
#include "kernels/scalar/scalar.h"

namespace nibble::kernels::scalar {

void RmsNorm(const float* x, const float* weight, int64_t n_rows, int64_t width, float eps,
             float* y) {
  for (int64_t row = 0; row < n_rows; ++row, x += width, y += width) {
    float lanes[kLanes] = {};
    const int64_t whole = width / kLanes * kLanes;
    for (int64_t i = 0; i < whole; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
    }
    for (int64_t i = whole; i < width; ++i) lanes[i - whole] += x[i] * x[i];
    const float mean = AddLanes(lanes) / static_cast<float>(width);
    const float factor = 1.0f / std::sqrt(mean + eps);
    if (weight == nullptr) {
      for (int64_t i = 0; i < width; ++i) y[i] = x[i] * factor;
    } else {
      for (int64_t i = 0; i < width; ++i) y[i] = x[i] * factor * weight[i];
    }
  }
}

void Rotate(float* x, int64_t n_heads, int64_t head_dim, const float* cos, const float* sin,
            int64_t n_pairs) {
  for (int64_t head = 0; head < n_heads; ++head, x += head_dim) {
    float* second = x + head_dim / 2;
    for (int64_t j = 0; j < n_pairs; ++j) {
      const float a = x[j];
      const float b = second[j];
      x[j] = a * cos[j] - b * sin[j];
      second[j] = b * cos[j] + a * sin[j];
    }
  }
}

void GeluMul(const float* gate, const float* up, int64_t n, float* y) {
  constexpr float kMinusTwoRootTwoOverPi = -1.5957691216057308f;
  for (int64_t i = 0; i < n; ++i) {
    const float x = gate[i];
    const float z = kMinusTwoRootTwoOverPi * (x + 0.044715f * (x * x * x));
    y[i] = x / (1.0f + Exp(z)) * up[i];
  }
}

void Softcap(float* x, int64_t n, float cap) {
  for (int64_t i = 0; i < n; ++i) x[i] = cap * Tanh(x[i] / cap);
}

void Softmax(float* x, int64_t n) {
  float max = x[0];
  for (int64_t i = 1; i < n; ++i) max = std::max(max, x[i]);
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) {
    x[i] = Exp(x[i] - max);
    lanes[i % kLanes] += x[i];
  }
  const float sum = AddLanes(lanes);
  for (int64_t i = 0; i < n; ++i) x[i] /= sum;
}

}  // namespace nibble::kernels::scalar
