// Grid recovery of many groups at once: one lane of a vector register, one group.
//
// Transposed so, the 32 values of each group meet in 32 plain vector operations and nothing is ever
// summed across lanes. The method is RecoverGroup's (grid.h), in a form without divisions: the ends
// of the scales' interval are kept as 840 times themselves (840 is divisible by every code 1 .. 8),
// and a 9-bit end times 840 / code is exact in float32; an end that does not belong to its interval
// is first moved inwards by kOpen, which survives the product and is told apart afterwards by the
// low bits. The one division by 840 at the end gives the very float that RecoverGroup's own division
// gives, as both round the same rational. docs/GRID.md tells the rest.
//
// Guarantee: a solved group has the codes, scale and counts of RecoverGroup, bit for bit. Left over
// are all-zero groups, NaN, infinity, magnitudes where the products above would leave float32's
// normal range, scales at the ends of fp16's range, and what is off the grid.
//
// A file for one instruction set instantiates Recover with its own `Isa`, of internal linkage, which
// gives the number of lanes and the operations that GCC's vector extension lacks. This header uses
// plain headers only: an inline function of the standard library, compiled here for a newer CPU,
// could be the copy that the linker keeps for all. Tested by grid_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "repack/grid_kernel.h"

namespace nibble::repack::lanes {

inline constexpr int kValues = 32;
inline constexpr int kPairs = kValues / 2;
inline constexpr int kMaxPeak = 8;

template <typename T, int kCount>
struct VectorOf {
  using Type __attribute__((vector_size(sizeof(T) * kCount))) = T;
};

template <typename Isa>
class Recovery {
 public:
  static constexpr int kLanes = Isa::kLanes;
  using F32 = typename VectorOf<float, kLanes>::Type;
  using I32 = typename VectorOf<int32_t, kLanes>::Type;
  using U32 = typename VectorOf<uint32_t, kLanes>::Type;
  using I16 = typename VectorOf<int16_t, 2 * kLanes>::Type;
  using U16 = typename VectorOf<uint16_t, 2 * kLanes>::Type;

};

}
