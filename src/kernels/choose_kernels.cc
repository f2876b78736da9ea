#include "kernels/choose_kernels.h"

#include <fmt/ranges.h>
#ifdef NIBBLE_ARM
#include <sys/auxv.h>
#endif

#include <string_view>

#include "kernels/scalar/scalar.h"
#ifdef NIBBLE_X86
#include "kernels/avx2/avx2.h"
#include "kernels/avx512/avx512.h"
#endif
#ifdef NIBBLE_ARM
#include "kernels/neon/neon.h"
#endif

namespace nibble::kernels {

std::vector<const KernelTable*> AvailableKernels() {
  std::vector<const KernelTable*> tables = {&scalar::kTable};
#ifdef NIBBLE_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    tables.push_back(&avx2::kTable);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni")) {
    tables.push_back(&avx512::kTable);
  }
#endif
#ifdef NIBBLE_ARM
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) tables.push_back(&neon::kTable);
#endif
  return tables;
}

Result<const KernelTable*> ChooseKernels(const char* forced) {
  const std::string_view name = forced == nullptr ? "" : forced;
  const std::vector<const KernelTable*> tables = AvailableKernels();
  if (name.empty()) return tables.back();
  std::vector<std::string_view> names;
  for (const KernelTable* table : tables) {
    if (name == table->name) return table;
    names.emplace_back(table->name);
  }
  return Fail("NIBBLE_KERNELS={}: no such kernels on this machine; there are: {}", name,
              fmt::join(names, ", "));
}

}  // namespace nibble::kernels
