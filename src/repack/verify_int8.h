// One int8 matrix against its source: is it what "int8 per channel" makes of it, and how far is
// that from the source?
//
// The rule, worked out here anew: a row's scale is its largest magnitude / 127 in the scale's dtype
// (1 for a row of zeros), a code is value / scale in float32, rounded half to even. Codes are
// compared byte for byte. int8 does not give the values back, so nothing here is called exact.
// Tested by verify_measure_test.cc and tests/interop/test_measure.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "repack/verify_measure.h"

namespace nibble::repack {

// Rows of an int8 matrix beside those of its source.
struct Int8Matrix {
  std::span<const std::byte> source;  // bf16 [n_rows, n_columns]
  std::span<const std::byte> codes;   // int8 [n_rows, n_columns]
  std::span<const std::byte> scales;  // [n_rows]
  DType scale_dtype = DType::kF32;    // or kBF16, kF16
  int64_t n_columns = 0;
  int64_t first_row = 0;  // of these in the whole matrix: for messages

  int64_t n_rows() const { return std::ssize(source) / (n_columns * 2); }
};

struct Int8Check {
  Measurement measured;  // n_moved: codes other than the rule's
  uint64_t n_rows = 0;
  uint64_t n_right_rows = 0;               // scale and codes are the rule's
  std::optional<int64_t> first_wrong_row;  // counted from the first of these
};

// Takes memory for every row: to be called for a slice of rows at a time.
Int8Check CheckInt8(const Int8Matrix& matrix, ThreadPool& pool);

// "row R ...", what is not the rule's in a row that is not right.
std::string DescribeInt8Fault(const Int8Matrix& matrix, int64_t row);

}  // namespace nibble::repack
