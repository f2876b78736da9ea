// Which kernels this process computes with. Tested by choose_kernels_test.cc.
#pragma once

#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"

namespace nibble::kernels {

// The table to use in this process: the best that this machine runs, or the one that `forced` names
// (the value of NIBBLE_KERNELS; null or "": no wish). A name that is not available is an error that
// lists those that are.
Result<const KernelTable*> ChooseKernels(const char* forced);

// All that this machine runs, slowest (scalar) first.
std::vector<const KernelTable*> AvailableKernels();

}  // namespace nibble::kernels
