// Eight groups at a time with AVX2. See grid_lanes.h.
#if defined(__AVX2__)
#include <immintrin.h>

#include "repack/grid_lanes.h"

namespace nibble::repack {
namespace {

struct Avx2 {
  static constexpr int kLanes = 8;
  using F32 = float __attribute__((vector_size(32)));
  using I32 = int32_t __attribute__((vector_size(32)));
  using U32 = uint32_t __attribute__((vector_size(32)));
  using I16 = int16_t __attribute__((vector_size(32)));
  using U16 = uint16_t __attribute__((vector_size(32)));
  using HalfU16 = uint16_t __attribute__((vector_size(16)));

  static uint32_t SignBits(I32 mask) {
    return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
  }

  // By the low three bits: 8 reads the place of 0.
  static F32 LookUp840ths(U32 code) {
    const __m256 table = _mm256_setr_ps(105, 840, 420, 280, 210, 168, 140, 120);
    return reinterpret_cast<F32>(_mm256_permutevar8x32_ps(table, reinterpret_cast<__m256i>(code)));
  }
};

}  // namespace

int64_t RecoverBatchAvx2(const GridBatch& batch, uint32_t* left_over, GridSums* sums) {
  return GridLanes<Avx2>::Recover(batch, left_over, sums);
}

}  // namespace nibble::repack
#endif
