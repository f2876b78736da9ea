#include "base/instruction_set.h"

#include <fmt/ranges.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <cstdlib>

namespace nibble {

std::string_view Name(InstructionSet set) {
  switch (set) {
    case InstructionSet::kScalar:
      return "scalar";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
    case InstructionSet::kNeon:
      return "neon";
  }
  return "?";
}

std::vector<InstructionSet> AvailableInstructionSets() {
  std::vector<InstructionSet> sets = {InstructionSet::kScalar};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    sets.push_back(InstructionSet::kAvx2);
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni")) {
    sets.push_back(InstructionSet::kAvx512);
  }
#elif defined(__aarch64__)
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) sets.push_back(InstructionSet::kNeon);
#endif
  return sets;
}

Result<InstructionSet> ChooseInstructionSet(const char* forced) {
  const std::vector<InstructionSet> sets = AvailableInstructionSets();
  const std::string_view name = forced == nullptr ? "" : forced;
  if (name.empty()) return sets.back();
  std::vector<std::string_view> names;
  for (const InstructionSet set : sets) {
    if (Name(set) == name) return set;
    names.push_back(Name(set));
  }
  return Fail("NIBBLE_KERNELS={}: not on this CPU; expected one of {}", name,
              fmt::join(names, ", "));
}

const Result<InstructionSet>& ChosenInstructionSet() {
  static const Result<InstructionSet> kChosen = ChooseInstructionSet(std::getenv("NIBBLE_KERNELS"));
  return kChosen;
}

}  // namespace nibble
