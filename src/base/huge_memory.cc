#include "base/huge_memory.h"

#include <sys/mman.h>

#include "base/check.h"

namespace nibble {

std::shared_ptr<std::byte[]> AllocateHuge(int64_t bytes) {
  const auto mapped_bytes = static_cast<size_t>(bytes + kHugePageBytes);
  void* const mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(mapped != MAP_FAILED);
  auto* const begin = static_cast<std::byte*>(mapped);
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin)) % kHugePageBytes;
  std::byte* const aligned = begin + (past == 0 ? 0 : kHugePageBytes - past);
  ::madvise(aligned, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a wish: small pages do too
  const std::shared_ptr<std::byte[]> owner(
      begin, [mapped_bytes](std::byte* data) { ::munmap(data, mapped_bytes); });
  return {owner, aligned};
}

}  // namespace nibble
