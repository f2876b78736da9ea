// Attention with NEON: floats16/ over this instruction set's registers.
#include "kernels/floats16/attention.h"

#include "kernels/neon/lanes.h"
#include "kernels/neon/neon.h"

namespace nibble::kernels::neon {

void Attention(const AttentionCall& call) { floats16::Attention<Floats>(call); }

}  // namespace nibble::kernels::neon
