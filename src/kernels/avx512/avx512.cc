#include "kernels/avx512/avx512.h"

#include "kernels/scalar/scalar.h"

namespace nibble::kernels::avx512 {

const KernelTable kTable = {
    .name = "avx512",
    .matmul = Matmul,
    .quantize = scalar::Quantize,
    .matmul_int8 = MatmulInt8,
    .rms_norm = scalar::RmsNorm,
    .rotate = scalar::Rotate,
    .gelu_mul = scalar::GeluMul,
    .softcap = scalar::Softcap,
    .softmax = scalar::Softmax,
    .attention = scalar::Attention,
    .gather_bf16 = scalar::GatherBf16,
    .gather_int4 = scalar::GatherInt4,
};

}  // namespace nibble::kernels::avx512
