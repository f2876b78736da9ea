#include "repack/grid_dispatch.h"

#include <numeric>

namespace nibble::repack {

int64_t RecoverBatch(InstructionSet set, const GridBatch& batch, uint32_t* left_over,
                     GridSums* sums) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return RecoverBatchAvx512(batch, left_over, sums);
  if (set == InstructionSet::kAvx2) return RecoverBatchAvx2(batch, left_over, sums);
#endif
  std::iota(left_over, left_over + batch.n_groups, 0u);
  return batch.n_groups;
}

}  // namespace nibble::repack
