// See verify_batch.h. Needs AVX2.
#if defined(__AVX2__)
#include <immintrin.h>

#include "repack/verify_lanes.h"

namespace nibble::repack {
namespace {

struct Avx2 {
  static constexpr int kLanes = 8;
  using F32 = float __attribute__((vector_size(32)));
  using I32 = int32_t __attribute__((vector_size(32)));
  using U32 = uint32_t __attribute__((vector_size(32)));
  using U16 = uint16_t __attribute__((vector_size(16)));

  static __m256i RoundToBf16(__m256 value) {
    const U32 bits = reinterpret_cast<U32>(value);
    return reinterpret_cast<__m256i>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // ties to even
  }

  static __m256i LoadTwo(const std::byte* low, const std::byte* high) {
    return _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(high),
                               reinterpret_cast<const __m128i*>(low));
  }

  static bool IsIdentical(const std::byte* source, const std::byte* packed, float scale) {
    // The values of codes -8 .. 7, in this order once the two are packed half by half.
    const __m256 factor = _mm256_set1_ps(scale);
    const __m256i words = _mm256_packus_epi32(
        RoundToBf16(_mm256_mul_ps(_mm256_setr_ps(-8, -7, -6, -5, 0, 1, 2, 3), factor)),
        RoundToBf16(_mm256_mul_ps(_mm256_setr_ps(-4, -3, -2, -1, 4, 5, 6, 7), factor)));
    const __m256i low_bytes = _mm256_and_si256(words, _mm256_set1_epi16(0xff));
    const __m256i high_bytes = _mm256_srli_epi16(words, 8);
    const __m256i table =
        _mm256_permute4x64_epi64(_mm256_packus_epi16(low_bytes, high_bytes), 0xd8);
    const __m256i low_table = _mm256_permute2x128_si256(table, table, 0x00);
    const __m256i high_table = _mm256_permute2x128_si256(table, table, 0x11);

    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed));
    const __m128i even = _mm_and_si128(bytes, _mm_set1_epi8(15));
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    const __m256i codes =
        _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));

    const __m256i low = _mm256_shuffle_epi8(low_table, codes);
    const __m256i high = _mm256_shuffle_epi8(high_table, codes);
    // Values 0 .. 7 and 16 .. 23, then 8 .. 15 and 24 .. 31.
    const __m256i a =
        _mm256_xor_si256(_mm256_unpacklo_epi8(low, high), LoadTwo(source, source + 32));
    const __m256i b =
        _mm256_xor_si256(_mm256_unpackhi_epi8(low, high), LoadTwo(source + 16, source + 48));
    const __m256i differing = _mm256_or_si256(a, b);
    return _mm256_testz_si256(differing, differing) != 0;
  }
};

}  // namespace

int64_t ProveBatchAvx2(const ProofBatch& batch, uint32_t* left_over, ProofSums* sums) {
  return ProofLanes<Avx2>::Prove(batch, left_over, sums);
}

}  // namespace nibble::repack
#endif
