// Rows of a bf16 matrix rounded by a rule that does not ask for the grid behind them, and what that
// costs: int8 per output channel (formats/int8_channel.h), and int4 in groups of 32 with the scale
// amax / 7.5, as usual exports of QAT checkpoints choose it. Neither gives the values back.
//
// A matrix is the source seen as [rows, K]; rows are [row_begin, row_end) of it. Errors: NaN or
// infinity; a scale out of its dtype's range; they name tensor, row and column. Errors of rounding
// are added to `sum` row by row, in order. The bytes do not depend on the number of threads.
// Tested by pack_rounded_test.cc, and by tests/interop/test_family.py against compressed-tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "repack/rounding.h"

namespace nibble::repack {

// codes: int8 [rows, K]; scales: float32 [rows]. The reader's value is code * scale in float32.
Status PackInt8Rows(const checkpoint::Tensor& source, int64_t row_begin, int64_t row_end,
                    std::span<std::byte> codes, std::span<std::byte> scales, ThreadPool& pool,
                    RoundingError* sum);

// codes, scales: as formats/int4_group32.h, K a multiple of 32, scale_dtype kF16 or kBF16. The
// scale is rounded to its dtype before codes are chosen; code = value / scale in float32, rounded
// half to even and clamped to -8 .. 7. An all-zero group has scale 1. The reader's value is
// bf16(float(code) * float(scale)).
Status PackMinMaxRows(const checkpoint::Tensor& source, int64_t row_begin, int64_t row_end,
                      DType scale_dtype, std::span<std::byte> codes, std::span<std::byte> scales,
                      ThreadPool& pool, RoundingError* sum);

}  // namespace nibble::repack
