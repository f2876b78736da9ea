// Memory in huge pages, where the system gives them: for what is read from end to end again and
// again, which would miss the TLB at every small page. Tested by tile_store_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace nibble {

inline constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Zeroed, aligned to a huge page; takes up memory when it is touched. bytes: at least 1.
std::shared_ptr<std::byte[]> AllocateHuge(int64_t bytes);

}  // namespace nibble
