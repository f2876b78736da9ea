#include "kernels/choose_kernels.h"

#include "base/check.h"
#include "base/instruction_set.h"
#include "kernels/scalar/scalar.h"
#ifdef NIBBLE_X86
#include "kernels/avx2/avx2.h"
#include "kernels/avx512/avx512.h"
#endif
#ifdef NIBBLE_ARM
#include "kernels/neon/neon.h"
#endif

namespace nibble::kernels {
namespace {

const KernelTable* TableOf(InstructionSet set) {
  switch (set) {
    case InstructionSet::kScalar:
      return &scalar::kTable;
#ifdef NIBBLE_X86
    case InstructionSet::kAvx2:
      return &avx2::kTable;
    case InstructionSet::kAvx512:
      return &avx512::kTable;
#endif
#ifdef NIBBLE_ARM
    case InstructionSet::kNeon:
      return &neon::kTable;
#endif
    default:
      CHECK(false);
  }
}

}  // namespace

std::vector<const KernelTable*> AvailableKernels() {
  std::vector<const KernelTable*> tables;
  for (const InstructionSet set : AvailableInstructionSets()) tables.push_back(TableOf(set));
  return tables;
}

Result<const KernelTable*> ChooseKernels(const char* forced) {
  NIBBLE_ASSIGN_OR_RETURN(const InstructionSet set, ChooseInstructionSet(forced));
  return TableOf(set);
}

}  // namespace nibble::kernels
