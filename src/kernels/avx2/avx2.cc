#include "kernels/avx2/avx2.h"

#include "kernels/avx2/lanes.h"
#include "kernels/floats16/table.h"

namespace nibble::kernels::avx2 {

constinit const KernelTable kTable =
    floats16::Table<Floats>("avx2", Matmul, MatmulInt8, MatmulInt16, MatmulInt8Channel);

}  // namespace nibble::kernels::avx2
