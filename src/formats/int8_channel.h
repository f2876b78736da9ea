// int8 per output channel: what compressed-tensors' "int-quantized" layout means, and how a row is
// rounded to it.
//
// A linear X of [N, K] is X.weight int8 [N, K], codes of row n, and X.weight_scale [N, 1] in F32 or
// BF16; the value is code * scale in the scale's dtype. The scale is the row's largest absolute
// value / 127, rounded to its dtype BEFORE the codes are chosen; a code is value / scale in
// float32, rounded half to even. Codes are therefore -127 .. 127, and a value is off by at most
// half a scale, but for float32's own rounding. Source: compressed-tensors,
// quantization/lifecycle/forward.py and compressors/naive_quantized. Tested by
// int8_channel_test.cc, against compressed-tensors.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace nibble::formats {

// row: finite values. dtype: kF32 or kBF16. The scale has that dtype's precision; it is 1 where it
// would otherwise be 0 (a row of zeros).
float Int8ChannelScale(std::span<const float> row, DType dtype);

// codes: as many as values. scale: Int8ChannelScale of this row.
void QuantizeInt8Channel(std::span<const float> row, float scale, std::span<int8_t> codes);

}  // namespace nibble::formats
