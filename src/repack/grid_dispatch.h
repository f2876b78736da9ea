// Grid recovery in bulk (grid_batch.h) with the instruction set asked for.
#pragma once

#include "base/instruction_set.h"
#include "repack/grid_batch.h"

namespace nibble::repack {

// As grid_batch.h says; `set` is one that this machine has. kScalar leaves every group over.
int64_t RecoverBatch(InstructionSet set, const GridBatch& batch, uint32_t* left_over,
                     GridSums* sums);

}  // namespace nibble::repack
