// What the files for single instruction sets share behind verify_batch.h: the loop over groups,
// around one comparison written in intrinsics. `Isa` is a type of internal linkage, and there are
// no other headers here, so that nothing compiled for a newer CPU is shared by the linker.
#pragma once

#include <cstddef>
#include <cstdint>

#include "repack/verify_batch.h"

namespace nibble::repack {

template <typename Isa>
class ProofLanes {
 public:
  static int64_t LeaveOutIdentical(const ProofBatch& batch, uint32_t* left_over,
                                   uint64_t* n_negative_scales) {
    int64_t n_left_over = 0;
    for (int64_t i = 0; i < batch.n_groups; ++i) {
      uint16_t bits;
      __builtin_memcpy(&bits, batch.scales + i * 2, sizeof bits);
      const bool is_identical =
          IsUsable(bits, batch.is_fp16) &&
          Isa::IsIdentical(batch.source + i * 64, batch.packed + i * 16,
                           batch.is_fp16 ? WidenFp16(bits) : FromBits(uint32_t{bits} << 16));
      left_over[n_left_over] = static_cast<uint32_t>(i);
      n_left_over += is_identical ? 0 : 1;
      *n_negative_scales += is_identical ? bits >> 15 : 0;
    }
    return n_left_over;
  }

 private:
  static bool IsUsable(uint16_t bits, bool is_fp16) {
    const int size = bits & 0x7fff;
    return size != 0 && size < (is_fp16 ? 0x7c00 : 0x7f80);
  }

  static float FromBits(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }

  // Finite ones. With fp16's exponent in float32's place a value is 2^112 times too small.
  static float WidenFp16(uint16_t bits) {
    const uint32_t size = static_cast<uint32_t>(bits & 0x7fff) << 13;
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    return FromBits(size | sign) * 0x1p112f;
  }
};

}  // namespace nibble::repack
