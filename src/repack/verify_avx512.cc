// See verify_batch.h. Needs AVX-512 F and BW.
#if defined(__AVX512BW__)
#include <immintrin.h>

#include "repack/verify_lanes.h"

namespace nibble::repack {
namespace {

struct Avx512 {
  static constexpr int kLanes = 16;
  using F32 = float __attribute__((vector_size(64)));
  using I32 = int32_t __attribute__((vector_size(64)));
  using U32 = uint32_t __attribute__((vector_size(64)));
  using U16 = uint16_t __attribute__((vector_size(32)));

  static bool IsIdentical(const std::byte* source, const std::byte* packed, float scale) {
    const __m512 codes = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const U32 products = reinterpret_cast<U32>(_mm512_mul_ps(codes, _mm512_set1_ps(scale)));
    const U32 rounded = (products + 0x7fff + ((products >> 16) & 1)) >> 16;  // to bf16, ties even
    const __m512i values = _mm512_castsi256_si512(
        _mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(rounded)));
    // Byte b becomes the double word b: its nibbles in the low and the high half.
    const U32 bytes = reinterpret_cast<U32>(_mm512_maskz_cvtepu8_epi32(
        0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed))));
    const U32 nibbles = (bytes | (bytes << 12)) & 0x000f000f;
    const __m512i read =
        _mm512_maskz_permutexvar_epi16(~0u, reinterpret_cast<__m512i>(nibbles), values);
    return _mm512_cmpneq_epi16_mask(read, _mm512_loadu_si512(source)) == 0;
  }
};

}  // namespace

int64_t ProveBatchAvx512(const ProofBatch& batch, uint32_t* left_over, ProofSums* sums) {
  return ProofLanes<Avx512>::Prove(batch, left_over, sums);
}

}  // namespace nibble::repack
#endif
