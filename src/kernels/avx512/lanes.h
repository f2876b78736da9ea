// Sixteen floats as one AVX-512 register, for the templates of floats16/. Everything here is local
// to the file that includes it: nothing may leak to files compiled for older CPUs.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace nibble::kernels::avx512 {
namespace {  // NOLINT(google-build-namespaces): local to each file that includes this

[[maybe_unused]] __m512 WidenBf16(const void* bits) {
  const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(bits));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// The first n lanes, n >= 0.
[[maybe_unused]] __mmask16 FirstLanes(int64_t n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1);
}

struct Floats {
  static constexpr int kQueriesTogether = 8;

  __m512 all;

  static Floats All(float value) { return {_mm512_set1_ps(value)}; }
  static Floats Load(const void* values) { return {_mm512_loadu_ps(values)}; }
  static Floats LoadBf16(const std::byte* bits) { return {WidenBf16(bits)}; }
  static Floats LoadInt8(const std::byte* codes) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
  }
  void Store(float* y) const { _mm512_storeu_ps(y, all); }
  // Rounds values within the type's range, ties to even, and returns their sum.
  int32_t StoreRounded(int8_t* to) const {
    const __m512i whole = _mm512_cvtps_epi32(all);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(whole));
    return _mm512_reduce_add_epi32(whole);
  }
  int32_t StoreRounded(int16_t* to) const {
    const __m512i whole = _mm512_cvtps_epi32(all);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(whole));
    return _mm512_reduce_add_epi32(whole);
  }
};

[[maybe_unused]] Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.all, b.all)}; }
[[maybe_unused]] Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.all, b.all)}; }
[[maybe_unused]] Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.all, b.all)}; }
[[maybe_unused]] Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.all, b.all)}; }
[[maybe_unused]] Floats Fma(Floats a, Floats b, Floats c) {
  return {_mm512_fmadd_ps(a.all, b.all, c.all)};
}
[[maybe_unused]] Floats Min(Floats a, Floats b) { return {_mm512_min_ps(a.all, b.all)}; }
[[maybe_unused]] Floats Max(Floats a, Floats b) { return {_mm512_max_ps(a.all, b.all)}; }
[[maybe_unused]] Floats And(Floats a, Floats b) { return {_mm512_and_ps(a.all, b.all)}; }
[[maybe_unused]] Floats Abs(Floats a) { return {_mm512_abs_ps(a.all)}; }
[[maybe_unused]] Floats Negate(Floats a) { return {_mm512_xor_ps(a.all, _mm512_set1_ps(-0.0f))}; }
[[maybe_unused]] Floats Less(Floats a, Floats b) {
  const __mmask16 is_less = _mm512_cmp_ps_mask(a.all, b.all, _CMP_LT_OQ);
  return {_mm512_castsi512_ps(_mm512_movm_epi32(is_less))};
}
// a where the mask is set, else b.
[[maybe_unused]] Floats Select(Floats mask, Floats a, Floats b) {
  return {_mm512_mask_mov_ps(b.all, _mm512_movepi32_mask(_mm512_castps_si512(mask.all)), a.all)};
}

// 2^n, n standing in the lowest bits of `shifted`.
[[maybe_unused]] Floats PowerOfTwo(Floats shifted) {
  const __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(shifted.all), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f800000)))};
}

// Adds lanes l and l + 8, then 4, 2, 1.
[[maybe_unused]] float AddLanes(Floats lanes) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(lanes.all), _mm512_extractf32x8_ps(lanes.all, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

[[maybe_unused]] float MaxLanes(Floats lanes) { return _mm512_reduce_max_ps(lanes.all); }

}  // namespace
}  // namespace nibble::kernels::avx512
