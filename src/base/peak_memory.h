// How much memory this process has had resident at most. Tested by tests/interop/test_scale.py.
#pragma once

#include <cstdint>

namespace nibble {

// Mapped file pages included. From the kernel's own count (VmHWM, Linux); where /proc is missing,
// from getrusage, which also counts what the parent process had before it started this one.
uint64_t PeakResidentBytes();

}  // namespace nibble
