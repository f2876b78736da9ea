#include "kernels/scalar/scalar.h"

namespace nibble::kernels::scalar {

const KernelTable kTable = {
    .name = "scalar",
    .matmul = Matmul,
    .quantize_int8 = QuantizeInt8,
    .quantize_int16 = QuantizeInt16,
    .matmul_int8 = MatmulInt8,
    .matmul_int16 = MatmulInt16,
    .quantize_rows = QuantizeRows,
    .matmul_int8_channel = MatmulInt8Channel,
    .rms_norm = RmsNorm,
    .rotate = Rotate,
    .gelu_mul = GeluMul,
    .softcap = Softcap,
    .softmax = Softmax,
    .attention = Attention,
    .gather_bf16 = GatherBf16,
    .gather_int4 = GatherInt4,
};

}  // namespace nibble::kernels::scalar
