// The table of an instruction set: its own matrix products, everything else from floats16/ and
// scalar/.
#pragma once

#include "kernels/floats16/attention.h"
#include "kernels/floats16/pointwise.h"
#include "kernels/kernels.h"
#include "kernels/scalar/scalar.h"

namespace nibble::kernels::floats16 {
namespace {  // NOLINT(google-build-namespaces): local to each file that includes this

template <typename Floats>
constexpr KernelTable Table(const char* name, decltype(KernelTable::matmul) matmul,
                            decltype(KernelTable::matmul_int8) matmul_int8,
                            decltype(KernelTable::matmul_int16) matmul_int16,
                            decltype(KernelTable::matmul_int8_channel) matmul_int8_channel) {
  return {
      .name = name,
      .matmul = matmul,
      .quantize_int8 = Quantize<Floats, int8_t>,
      .quantize_int16 = Quantize<Floats, int16_t>,
      .matmul_int8 = matmul_int8,
      .matmul_int16 = matmul_int16,
      .quantize_rows = QuantizeRows<Floats>,
      .matmul_int8_channel = matmul_int8_channel,
      .rms_norm = RmsNorm<Floats>,
      .rotate = scalar::Rotate,
      .gelu_mul = GeluMul<Floats>,
      .softcap = Softcap<Floats>,
      .softmax = Softmax<Floats>,
      .attention = Attention<Floats>,
      .gather_bf16 = scalar::GatherBf16,
      .gather_int4 = scalar::GatherInt4,
  };
}

}  // namespace
}  // namespace nibble::kernels::floats16
