#include "repack/verify_batch.h"

#include <numeric>

#include "base/instruction_set.h"

namespace nibble::repack {

int64_t LeaveOutIdentical(InstructionSet set, const ProofBatch& batch, uint32_t* left_over,
                          uint64_t* n_negative_scales) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) {
    return LeaveOutIdenticalAvx512(batch, left_over, n_negative_scales);
  }
  if (set == InstructionSet::kAvx2) {
    return LeaveOutIdenticalAvx2(batch, left_over, n_negative_scales);
  }
#endif
  std::iota(left_over, left_over + batch.n_groups, 0u);
  return batch.n_groups;
}

}  // namespace nibble::repack
