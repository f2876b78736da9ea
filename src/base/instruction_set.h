// Which vector instructions to use: decided at run time, by what the CPU has or by what is asked
// for, in one place for kernels, grid recovery and verify; one that has no code for a set uses
// plain code. Thread-safe. Tested by instruction_set_test.cc.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nibble {

enum class InstructionSet : uint8_t {
  kScalar,  // what the compiler makes of plain code for the oldest CPU of the architecture
  kAvx2,    // with FMA and F16C
  kAvx512,  // F, BW, DQ, VL and VNNI
  kNeon,    // with dot products
};

std::string_view Name(InstructionSet set);

// Those that this CPU and this build have, slowest first; kScalar always.
std::vector<InstructionSet> AvailableInstructionSets();

// The fastest available one, or the one that `forced` names (null or "": no wish). Error: there is
// no such name, or this CPU lacks it.
Result<InstructionSet> ChooseInstructionSet(const char* forced);

// The choice for this process: `forced` is the value of NIBBLE_KERNELS, read once.
const Result<InstructionSet>& ChosenInstructionSet();

}  // namespace nibble
