#include "kernels/neon/neon.h"

#include "kernels/floats16/table.h"
#include "kernels/neon/lanes.h"

namespace nibble::kernels::neon {

constinit const KernelTable kTable =
    floats16::Table<Floats>("neon", Matmul, MatmulInt8, MatmulInt16, MatmulInt8Channel);

}  // namespace nibble::kernels::neon
