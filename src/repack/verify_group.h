// The proof for one packed group: do its stored codes and scale stand for the 32 source values?
//
// Shares no code with the recovery (repack/grid.h) and goes the other way: the codes are given, so
// each one and its source value admit an interval of scales; compared exactly, in double.
//
// A group is right if
//   1. some real scale explains all values with the stored codes (then every code is right), and
//   2. the stored scale is as good as its dtype allows: it lies in that interval, or no scale of
//   the
//      dtype does and the interval meets the reals that round to the stored one.
// From 2 follows a bound: for a normal scale, the stored one is off by at most one part in 2^8 of
// itself (bf16), so what the reader computes is at most one bf16 step from the source
// (docs/GRID.md). Tested by verify_group_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/dtype.h"

namespace nibble::repack {

struct GroupProof {
  bool is_right = true;
  bool has_right_codes = true;
  int column = 0;  // of the largest deviation
  int n_bit_identical = 0;
  int n_zero_sign_lost = 0;  // equal in value: zero with the other sign
  uint32_t worst_ulp = 0;    // bf16 steps
  uint16_t scale_bits = 0;
};

// source: 32 bf16 values, 64 bytes; packed: their 16 bytes; scale: its 2 (F16 or BF16).
GroupProof ProveGroup(std::span<const std::byte, 64> source, std::span<const std::byte, 16> packed,
                      const std::byte* scale, DType scale_dtype);

// What is wrong with a group that is not right, in words: "holds X, expected Y".
std::string DescribeFault(std::span<const std::byte, 64> source,
                          std::span<const std::byte, 16> packed, const std::byte* scale,
                          DType scale_dtype);

}  // namespace nibble::repack
