// Sixteen floats: exp and tanh as scalar/math.h has them, operation by operation, and the order of
// lane sums. Everything here is static: nothing may leak to files compiled for older CPUs.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace nibble::kernels::avx512 {
namespace {

[[maybe_unused]] __m512 WidenBf16(const void* bits) {
  const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(bits));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// The first n lanes, n >= 0.
[[maybe_unused]] __mmask16 FirstLanes(int64_t n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1);
}

// Adds lanes l and l + 8, then 4, 2, 1.
[[maybe_unused]] float AddLanes(__m512 lanes) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(lanes), _mm512_extractf32x8_ps(lanes, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

[[maybe_unused]] __m512 Exp(__m512 x) {
  x = _mm512_min_ps(_mm512_set1_ps(88.0f), _mm512_max_ps(_mm512_set1_ps(-87.0f), x));
  const __m512 round = _mm512_set1_ps(12582912.0f);
  const __m512 shifted =
      _mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), round);
  const __m512 n = _mm512_sub_ps(shifted, round);
  x = _mm512_sub_ps(x, _mm512_mul_ps(n, _mm512_set1_ps(0.693359375f)));
  x = _mm512_sub_ps(x, _mm512_mul_ps(n, _mm512_set1_ps(-2.12194440e-4f)));
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  for (const float coefficient :
       {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) {
    p = _mm512_add_ps(_mm512_mul_ps(p, x), _mm512_set1_ps(coefficient));
  }
  p = _mm512_add_ps(_mm512_add_ps(_mm512_mul_ps(p, _mm512_mul_ps(x, x)), x), _mm512_set1_ps(1.0f));
  const __m512i power = _mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(shifted), 23),
                                         _mm512_set1_epi32(0x3f800000));
  return _mm512_mul_ps(p, _mm512_castsi512_ps(power));
}

[[maybe_unused]] __m512 Tanh(__m512 x) {
  const __m512 size = _mm512_abs_ps(x);
  const __m512 z = _mm512_mul_ps(x, x);
  __m512 p = _mm512_set1_ps(-5.70498872745e-3f);
  for (const float coefficient :
       {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f}) {
    p = _mm512_add_ps(_mm512_mul_ps(p, z), _mm512_set1_ps(coefficient));
  }
  const __m512 small = _mm512_add_ps(_mm512_mul_ps(_mm512_mul_ps(p, z), x), x);
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 two = _mm512_set1_ps(2.0f);
  const __m512 power = Exp(_mm512_mul_ps(two, _mm512_min_ps(_mm512_set1_ps(40.0f), size)));
  const __m512 large = _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(power, one)));
  const __mmask16 is_negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  const __m512 signed_large = _mm512_mask_xor_ps(large, is_negative, large, _mm512_set1_ps(-0.0f));
  const __mmask16 is_small = _mm512_cmp_ps_mask(size, _mm512_set1_ps(0.625f), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(signed_large, is_small, small);
}

}  // namespace
}  // namespace nibble::kernels::avx512
