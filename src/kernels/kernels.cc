#include "kernels/kernels.h"

#include "kernels/scalar/scalar.h"

namespace nibble::kernels {

Result<const KernelTable*> ChooseKernels(const char* forced) {
  const std::string_view name = forced == nullptr ? "" : forced;
  if (name.empty() || name == scalar::kTable.name) return &scalar::kTable;
  return Fail("NIBBLE_KERNELS={}: no such kernels; there are: {}", name, scalar::kTable.name);
}

}  // namespace nibble::kernels
