#include "kernels/avx512/avx512.h"

#include "kernels/avx512/lanes.h"
#include "kernels/floats16/attention.h"
#include "kernels/floats16/pointwise.h"
#include "kernels/scalar/scalar.h"

namespace nibble::kernels::avx512 {

const KernelTable kTable = {
    .name = "avx512",
    .matmul = Matmul,
    .quantize = floats16::Quantize<Floats>,
    .matmul_int8 = MatmulInt8,
    .quantize_rows = floats16::QuantizeRows<Floats>,
    .matmul_int8_channel = MatmulInt8Channel,
    .rms_norm = floats16::RmsNorm<Floats>,
    .rotate = scalar::Rotate,
    .gelu_mul = floats16::GeluMul<Floats>,
    .softcap = floats16::Softcap<Floats>,
    .softmax = floats16::Softmax<Floats>,
    .attention = floats16::Attention<Floats>,
    .gather_bf16 = scalar::GatherBf16,
    .gather_int4 = scalar::GatherInt4,
};

}  // namespace nibble::kernels::avx512
