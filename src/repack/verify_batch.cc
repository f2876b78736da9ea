#include "repack/verify_batch.h"

#include <numeric>

#include "base/instruction_set.h"

namespace nibble::repack {

int64_t ProveBatch(InstructionSet set, const ProofBatch& batch, uint32_t* left_over,
                   ProofSums* sums) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return ProveBatchAvx512(batch, left_over, sums);
  if (set == InstructionSet::kAvx2) return ProveBatchAvx2(batch, left_over, sums);
#endif
  std::iota(left_over, left_over + batch.n_groups, 0u);
  return batch.n_groups;
}

}  // namespace nibble::repack
