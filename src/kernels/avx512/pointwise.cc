// Norms, activations, softmax and the rounding of activations, sixteen values at a time.
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/lanes.h"

namespace nibble::kernels::avx512 {

void RmsNorm(const float* x, const float* weight, int64_t n_rows, int64_t width, float eps,
             float* y) {
  for (int64_t row = 0; row < n_rows; ++row, x += width, y += width) {
    __m512 lanes = _mm512_setzero_ps();
    for (int64_t i = 0; i < width; i += 16) {
      const __m512 value = _mm512_maskz_loadu_ps(FirstLanes(width - i), x + i);
      lanes = _mm512_add_ps(lanes, _mm512_mul_ps(value, value));
    }
    const float mean = AddLanes(lanes) / static_cast<float>(width);
    const float root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + eps)));
    const __m512 factor = _mm512_set1_ps(1.0f / root);
    for (int64_t i = 0; i < width; i += 16) {
      const __mmask16 mask = FirstLanes(width - i);
      __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor);
      if (weight != nullptr) value = _mm512_mul_ps(value, _mm512_maskz_loadu_ps(mask, weight + i));
      _mm512_mask_storeu_ps(y + i, mask, value);
    }
  }
}

void GeluMul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = FirstLanes(n - i);
    const __m512 x = _mm512_maskz_loadu_ps(mask, gate + i);
    const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(x, x), x);
    const __m512 z =
        _mm512_mul_ps(_mm512_set1_ps(-1.5957691216057308f),
                      _mm512_add_ps(x, _mm512_mul_ps(_mm512_set1_ps(0.044715f), cube)));
    const __m512 gelu = _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), Exp(z)));
    _mm512_mask_storeu_ps(y + i, mask, _mm512_mul_ps(gelu, _mm512_maskz_loadu_ps(mask, up + i)));
  }
}

void Softcap(float* x, int64_t n, float cap) {
  const __m512 caps = _mm512_set1_ps(cap);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = FirstLanes(n - i);
    const __m512 value = _mm512_maskz_loadu_ps(mask, x + i);
    _mm512_mask_storeu_ps(x + i, mask, _mm512_mul_ps(caps, Tanh(_mm512_div_ps(value, caps))));
  }
}

void Softmax(float* x, int64_t n) {
  __m512 max = _mm512_set1_ps(x[0]);
  for (int64_t i = 0; i < n; i += 16) {
    max = _mm512_max_ps(_mm512_mask_loadu_ps(max, FirstLanes(n - i), x + i), max);
  }
  const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(max));
  __m512 lanes = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = FirstLanes(n - i);
    const __m512 power = Exp(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), largest));
    _mm512_mask_storeu_ps(x + i, mask, power);
    lanes = _mm512_mask_add_ps(lanes, mask, lanes, power);
  }
  const __m512 sum = _mm512_set1_ps(AddLanes(lanes));
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = FirstLanes(n - i);
    _mm512_mask_storeu_ps(x + i, mask, _mm512_div_ps(_mm512_maskz_loadu_ps(mask, x + i), sum));
  }
}

void Quantize(const float* x, int64_t n_rows, int64_t n_columns, const Int8Rows& rows) {
  const __m512 limit = _mm512_set1_ps(127.0f);
  const __m512 low = _mm512_set1_ps(-127.0f);
  int64_t at = 0;
  for (int64_t row = 0; row < n_rows; ++row, x += n_columns) {
    for (int64_t k = 0; k < n_columns; k += kBlockK, ++at) {
      __mmask16 masks[2];
      __m512 values[2];
      __m512 size = _mm512_setzero_ps();
      for (int half = 0; half < 2; ++half) {
        const int64_t first = k + half * 16;
        masks[half] = first < n_columns ? FirstLanes(n_columns - first) : __mmask16{0};
        values[half] = _mm512_maskz_loadu_ps(masks[half], x + first);
        size = _mm512_max_ps(_mm512_abs_ps(values[half]), size);  // a NaN leaves `size`
      }
      float peak = _mm512_reduce_max_ps(size);
      if (peak < kLeastPeak) peak = 0;
      const __m512 inverse = _mm512_set1_ps(peak == 0 ? 0.0f : 127.0f / peak);
      __m512i sum = _mm512_setzero_si512();
      for (int half = 0; half < 2; ++half) {
        const __m512 scaled = _mm512_max_ps(_mm512_mul_ps(values[half], inverse), low);
        const __m512i whole = _mm512_maskz_cvtps_epi32(masks[half], _mm512_min_ps(scaled, limit));
        sum = _mm512_add_epi32(sum, whole);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(rows.values + at * kBlockK + half * 16),
                         _mm512_cvtepi32_epi8(whole));
      }
      rows.scales[at] = peak / 127.0f;
      rows.offsets[at] = -8 * _mm512_reduce_add_epi32(sum);
    }
  }
}

}  // namespace nibble::kernels::avx512
