// The proof and the measurement of one int4 matrix, group by group in parallel.
//
// With groups of 32 and two-byte scales each group is proven as verify_group.h says. Wider groups
// and float32 scales occur in other makers' files: there a group is right if every value is read
// back. Sums are taken in the groups' order, whatever the number of threads.
// Tested by repack_test.cc, verify_measure_test.cc and tests/interop/test_measure.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "repack/verify_measure.h"

namespace nibble::repack {

// Sums and maxima over packed groups of 32.
struct ProofCounts {
  uint64_t n_groups = 0;
  uint64_t n_right_groups = 0;  // codes and scale proven
  uint64_t n_wrong_codes = 0;   // groups whose codes no scale explains
  uint64_t n_negative_scales = 0;
  uint64_t n_values = 0;
  uint64_t n_bit_identical = 0;
  uint64_t n_zero_sign_lost = 0;  // zeros read back as the other zero: equal, not bit-identical
  uint32_t worst_ulp = 0;         // bf16 steps; of groups of 32 with two-byte scales

  void Merge(const ProofCounts& other);
  Json ToJson() const;
};

// Rows of a packed matrix beside those of its source.
struct Int4Matrix {
  std::span<const std::byte> source;  // bf16 [n_rows, n_columns], n_columns a multiple of 32
  std::span<const std::byte> codes;   // nibbles, low first
  std::span<const std::byte> scales;  // [n_rows, n_columns / group_size]
  DType scale_dtype = DType::kF16;    // or kBF16, kF32
  int64_t n_columns = 0;
  int64_t group_size = 32;  // a multiple of 32 that divides n_columns
  int64_t first_row = 0;    // of these in the whole matrix: for messages

  bool is_provable() const { return group_size == 32 && scale_dtype != DType::kF32; }
  int64_t n_rows() const { return std::ssize(source) / (n_columns * 2); }
};

struct Int4Proof {
  ProofCounts counts;
  Measurement measured;
  std::optional<int64_t> first_wrong;  // group of 32, counted from the first row's first
};

// Of source, proven at once.
inline constexpr int64_t kProofSliceBytes = int64_t{32} << 20;

// Takes memory for every few thousand groups: to be called for a slice of rows at a time.
Int4Proof ProveInt4(const Int4Matrix& matrix, ThreadPool& pool);

// "row R group G column C: ...", what is wrong with a group that is not right.
std::string DescribeInt4Fault(const Int4Matrix& matrix, int64_t group);

}  // namespace nibble::repack
