// Attention with AVX2: floats16/ over this instruction set's registers.
#include "kernels/floats16/attention.h"

#include "kernels/avx2/avx2.h"
#include "kernels/avx2/lanes.h"

namespace nibble::kernels::avx2 {

void Attention(const AttentionCall& call) { floats16::Attention<Floats>(call); }

}  // namespace nibble::kernels::avx2
