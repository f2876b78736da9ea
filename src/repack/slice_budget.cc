#include "repack/slice_budget.h"

#include <algorithm>

namespace nibble::repack {
namespace {

constexpr uint64_t kTensorBytes = 6 << 10;
constexpr uint64_t kMaxSliceBytes = uint64_t{32} << 20;
constexpr uint64_t kMinSliceBytes = uint64_t{1} << 20;

}  // namespace

uint64_t LeastMemoryBytes(uint64_t base_bytes, size_t n_tensors) {
  return base_bytes + n_tensors * kTensorBytes + kSlices * kMinSliceBytes;
}

Status CheckMemoryLimit(uint64_t max_memory_bytes, uint64_t least_bytes) {
  if (max_memory_bytes >= least_bytes) return {};
  return Fail("at most {} bytes of memory: this model needs {} (--max-memory {}MiB)",
              max_memory_bytes, least_bytes, (least_bytes >> 20) + 1);
}

uint64_t SliceBytes(uint64_t max_memory_bytes, uint64_t least_bytes) {
  return std::min(kMaxSliceBytes, kMinSliceBytes + (max_memory_bytes - least_bytes) / kSlices);
}

}  // namespace nibble::repack
