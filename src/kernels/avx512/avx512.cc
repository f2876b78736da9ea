#include "kernels/avx512/avx512.h"

#include "kernels/avx512/lanes.h"
#include "kernels/floats16/table.h"

namespace nibble::kernels::avx512 {

constinit const KernelTable kTable =
    floats16::Table<Floats>("avx512", Matmul, MatmulInt8, MatmulInt16, MatmulInt8Channel);

}  // namespace nibble::kernels::avx512
