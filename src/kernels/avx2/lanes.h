// Sixteen floats as two AVX registers, for the templates of floats16/. Everything here is local to
// the file that includes it: nothing may leak to files compiled for older CPUs.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace nibble::kernels::avx2 {
namespace {  // NOLINT(google-build-namespaces): local to each file that includes this

[[maybe_unused]] __m256 WidenBf16(const void* bits) {
  const __m128i half = _mm_loadu_si128(static_cast<const __m128i*>(bits));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

struct Floats {
  static constexpr int kQueriesTogether = 4;

  __m256 low;   // lanes 0 .. 7
  __m256 high;  // lanes 8 .. 15

  static Floats All(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Floats Load(const void* values) {
    const auto* from = static_cast<const float*>(values);
    return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)};
  }
  static Floats LoadBf16(const std::byte* bits) { return {WidenBf16(bits), WidenBf16(bits + 16)}; }
  static Floats LoadInt8(const std::byte* codes) {
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)))};
  }
  void Store(float* y) const {
    _mm256_storeu_ps(y, low);
    _mm256_storeu_ps(y + 8, high);
  }
  // Rounds values within the type's range, ties to even, and returns their sum.
  int32_t StoreRounded(int8_t* to) const {
    const Whole whole(*this);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(whole.first, whole.second));
    return whole.sum;
  }
  int32_t StoreRounded(int16_t* to) const {
    const Whole whole(*this);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), whole.first);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), whole.second);
    return whole.sum;
  }

 private:
  struct Whole {
    explicit Whole(const Floats& values)
        : Whole(_mm256_cvtps_epi32(values.low), _mm256_cvtps_epi32(values.high)) {}
    Whole(__m256i low, __m256i high)
        : first(_mm_packs_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1))),
          second(_mm_packs_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1))) {
      const __m256i eight = _mm256_add_epi32(low, high);
      __m128i four =
          _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
      four = _mm_add_epi32(four, _mm_srli_si128(four, 8));
      sum = _mm_cvtsi128_si32(four) + _mm_extract_epi32(four, 1);
    }

    __m128i first;  // int16
    __m128i second;
    int32_t sum = 0;
  };
};

[[maybe_unused]] Floats operator+(Floats a, Floats b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
[[maybe_unused]] Floats operator-(Floats a, Floats b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
[[maybe_unused]] Floats operator*(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
[[maybe_unused]] Floats operator/(Floats a, Floats b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
[[maybe_unused]] Floats Fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
[[maybe_unused]] Floats Min(Floats a, Floats b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
[[maybe_unused]] Floats Max(Floats a, Floats b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
[[maybe_unused]] Floats And(Floats a, Floats b) {
  return {_mm256_and_ps(a.low, b.low), _mm256_and_ps(a.high, b.high)};
}
[[maybe_unused]] Floats Abs(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
[[maybe_unused]] Floats Negate(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(sign, a.low), _mm256_xor_ps(sign, a.high)};
}
[[maybe_unused]] Floats Less(Floats a, Floats b) {
  return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
}
// a where the mask is set, else b.
[[maybe_unused]] Floats Select(Floats mask, Floats a, Floats b) {
  return {_mm256_blendv_ps(b.low, a.low, mask.low), _mm256_blendv_ps(b.high, a.high, mask.high)};
}

[[maybe_unused]] __m256 PowerOfTwo(__m256 shifted) {
  const __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f800000)));
}
// 2^n, n standing in the lowest bits of `shifted`.
[[maybe_unused]] Floats PowerOfTwo(Floats shifted) {
  return {PowerOfTwo(shifted.low), PowerOfTwo(shifted.high)};
}

// Adds lanes l and l + 8, then 4, 2, 1.
[[maybe_unused]] float AddLanes(Floats lanes) {
  const __m256 eight = _mm256_add_ps(lanes.low, lanes.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

[[maybe_unused]] float MaxLanes(Floats lanes) {
  const __m256 eight = _mm256_max_ps(lanes.low, lanes.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace
}  // namespace nibble::kernels::avx2
