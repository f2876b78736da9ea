// Weights from a GGUF file.
//
// Linears: Q4_0 into the same int4 tiles as compressed-tensors' int4, Q6_K into int8 ones, BF16 as
// it is, F16 and F32 as bf16 where that holds every value (a router's are) and as float32 where
// not. Tables: rows of Q4_0, Q6_K, BF16, F16 or F32 in the mapped file. Plain tensors: BF16, F16,
// F32. Any other type is an error that names tensor and type. Tested by weights_gguf_test.cc and
// tests/interop/test_gguf.py.
#pragma once

#include "base/result.h"
#include "checkpoint/gguf_file.h"
#include "model/weights.h"

namespace nibble::model {

Result<Weights> BindGguf(checkpoint::GgufFile file, kernels::TileStore& store);

// The values of a row of a table in F16, F32, Q4_0 or Q6_K, as ggml's reader has them.
void ReadGgufRow(const Table& table, int64_t row, float* out);

}  // namespace nibble::model
