#include "base/peak_memory.h"

#include <sys/resource.h>

#include <fstream>
#include <string>

namespace nibble {

uint64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    uint64_t n_kib = 0;
    if (key == "VmHWM:" && status >> n_kib) return n_kib << 10;
  }
  struct rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) << 10;
}

}  // namespace nibble
