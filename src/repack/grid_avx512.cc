// Sixteen groups at a time with AVX-512 (F, BW, DQ, VL). See grid_lanes.h.
#if defined(__AVX512BW__)
#include <immintrin.h>

#include "repack/grid_lanes.h"

namespace nibble::repack {
namespace {

struct Avx512 {
  static constexpr int kLanes = 16;
  using F32 = float __attribute__((vector_size(64)));
  using I32 = int32_t __attribute__((vector_size(64)));
  using U32 = uint32_t __attribute__((vector_size(64)));
  using I16 = int16_t __attribute__((vector_size(64)));
  using U16 = uint16_t __attribute__((vector_size(64)));
  using HalfU16 = uint16_t __attribute__((vector_size(32)));

  static uint32_t SignBits(I32 mask) {
    return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
  }

  // 840 / code by the low four bits of `code`; 840 for code 0.
  static F32 LookUp840ths(U32 code) {
    const __m512 table =
        _mm512_setr_ps(840, 840, 420, 280, 210, 168, 140, 120, 105, 0, 0, 0, 0, 0, 0, 0);
    return reinterpret_cast<F32>(
        _mm512_maskz_permutexvar_ps(0xffff, reinterpret_cast<__m512i>(code), table));
  }
};

}  // namespace

int64_t RecoverBatchAvx512(const GridBatch& batch, uint32_t* left_over, GridSums* sums) {
  return GridLanes<Avx512>::Recover(batch, left_over, sums);
}

}  // namespace nibble::repack
#endif
