#include "kernels/neon/neon.h"

#include "kernels/scalar/scalar.h"

namespace nibble::kernels::neon {

const KernelTable kTable = {
    .name = "neon",
    .matmul = Matmul,
    .quantize = Quantize,
    .matmul_int8 = MatmulInt8,
    .quantize_rows = QuantizeRows,
    .matmul_int8_channel = MatmulInt8Channel,
    .rms_norm = RmsNorm,
    .rotate = scalar::Rotate,
    .gelu_mul = GeluMul,
    .softcap = Softcap,
    .softmax = Softmax,
    .attention = Attention,
    .gather_bf16 = scalar::GatherBf16,
    .gather_int4 = scalar::GatherInt4,
};

}  // namespace nibble::kernels::neon
