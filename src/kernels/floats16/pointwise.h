// Norms, activations, softmax and the rounding of activations over sixteen floats of any
// instruction set (lanes.h).
#pragma once

#include "kernels/floats16/lanes.h"
#include "kernels/kernels.h"

namespace nibble::kernels::floats16 {
namespace {  // NOLINT(google-build-namespaces): local to each file that includes this

template <typename Floats>
[[maybe_unused]] void RmsNorm(const float* x, const float* weight, int64_t n_rows, int64_t width,
                              float eps, float* y) {
  for (int64_t row = 0; row < n_rows; ++row, x += width, y += width) {
    Floats lanes = Floats::All(0.0f);
    for (int64_t i = 0; i < width; i += kLanes) {
      const Floats value = LoadFirst<Floats>(x + i, width - i);
      lanes = lanes + value * value;
    }
    const float mean = AddLanes(lanes) / static_cast<float>(width);
    const Floats factor = Floats::All(1.0f / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < width; i += kLanes) {
      Floats value = LoadFirst<Floats>(x + i, width - i) * factor;
      if (weight != nullptr) value = value * LoadFirst<Floats>(weight + i, width - i);
      StoreFirst(value, y + i, width - i);
    }
  }
}

template <typename Floats>
[[maybe_unused]] void GeluMul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Floats x = LoadFirst<Floats>(gate + i, n - i);
    const Floats z = Floats::All(-1.5957691216057308f) * (x + Floats::All(0.044715f) * (x * x * x));
    const Floats gelu = x / (Floats::All(1.0f) + Exp(z));
    StoreFirst(gelu * LoadFirst<Floats>(up + i, n - i), y + i, n - i);
  }
}

template <typename Floats>
[[maybe_unused]] void Softcap(float* x, int64_t n, float cap) {
  const Floats caps = Floats::All(cap);
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreFirst(caps * Tanh(LoadFirst<Floats>(x + i, n - i) / caps), x + i, n - i);
  }
}

template <typename Floats>
[[maybe_unused]] void Softmax(float* x, int64_t n) {
  const int64_t whole = n / kLanes * kLanes;
  const Floats tail = Between<Floats>(0, n - whole);
  Floats max = Floats::All(x[0]);
  for (int64_t i = 0; i < whole; i += kLanes) max = Max(Floats::Load(x + i), max);
  max = Max(Select(tail, LoadFirst<Floats>(x + whole, n - whole), max), max);
  max = Floats::All(MaxLanes(max));
  Floats lanes = Floats::All(0.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Floats power = Exp(LoadFirst<Floats>(x + i, n - i) - max);
    StoreFirst(power, x + i, n - i);
    lanes = lanes + (i < whole ? power : And(tail, power));
  }
  const Floats sum = Floats::All(AddLanes(lanes));
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreFirst(LoadFirst<Floats>(x + i, n - i) / sum, x + i, n - i);
  }
}

template <typename T>
constexpr float kPeak = sizeof(T) == 1 ? 127 : 32767;

// Into -peak .. peak of T; NaN to -peak.
template <typename T, typename Floats>
[[maybe_unused]] Floats Limit(Floats values) {
  return Min(Max(values, Floats::All(-kPeak<T>)), Floats::All(kPeak<T>));
}

template <typename Floats, typename T>
[[maybe_unused]] void Quantize(const float* x, int64_t n_rows, int64_t n_columns,
                               const RoundedRows<T>& rows) {
  int64_t at = 0;
  for (int64_t row = 0; row < n_rows; ++row, x += n_columns) {
    for (int64_t k = 0; k < n_columns; k += kBlockK, ++at) {
      Floats values[2];
      Floats size = Floats::All(0.0f);
      for (int half = 0; half < 2; ++half) {
        const int64_t first = k + half * kLanes;
        values[half] = LoadFirst<Floats>(x + first, n_columns - first);
        size = Max(Abs(values[half]), size);  // a NaN leaves `size`
      }
      float largest = MaxLanes(size);
      if (largest < kLeastPeak) largest = 0;
      const Floats inverse = Floats::All(largest == 0 ? 0.0f : kPeak<T> / largest);
      int32_t sum = 0;
      for (int half = 0; half < 2; ++half) {
        T* whole = rows.values + at * kBlockK + half * kLanes;
        sum += Limit<T>(values[half] * inverse).StoreRounded(whole);
      }
      rows.scales[at] = largest / kPeak<T>;
      rows.offsets[at] = -8 * sum;
    }
  }
}

template <typename Floats>
[[maybe_unused]] void QuantizeRows(const float* x, int64_t n_rows, int64_t n_columns, int8_t* codes,
                                   float* scales) {
  const int64_t padded = (n_columns + kBlockK - 1) / kBlockK * kBlockK;
  for (int64_t row = 0; row < n_rows; ++row, x += n_columns, codes += padded) {
    Floats size = Floats::All(0.0f);
    for (int64_t i = 0; i < n_columns; i += kLanes) {
      size = Max(Abs(LoadFirst<Floats>(x + i, n_columns - i)), size);  // a NaN leaves `size`
    }
    const float ratio = MaxLanes(size) / 127.0f;  // 0 for subnormal values, too
    scales[row] = ratio > 0 ? ratio : 1.0f;
    const Floats scale = Floats::All(scales[row]);
    for (int64_t i = 0; i < padded; i += kLanes) {
      Limit<int8_t>(LoadFirst<Floats>(x + i, n_columns - i) / scale).StoreRounded(codes + i);
    }
  }
}

}  // namespace
}  // namespace nibble::kernels::floats16
