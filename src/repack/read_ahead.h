// The source of one slice is brought into memory while the one before it is packed and written.
// Tested by repack_test.cc and gguf_export_test.cc.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "base/task_queue.h"

namespace nibble::repack {

// Slice: has `source`, bytes of a mapped file. The slices must outlive this object.
template <typename Slice>
class ReadAhead {
 public:
  explicit ReadAhead(const std::vector<Slice>& slices) : slices_(slices) { Push(0); }

  // Waits for slice i, and begins with the next one; i from 0 on, in order.
  Status WaitFor(size_t i) {
    Push(i + 1);
    return queue_.WaitFor(i + 1);  // tasks count from 1
  }

 private:
  void Push(size_t i) {
    if (i >= slices_.size()) return;
    queue_.Push([source = std::span<const std::byte>(slices_[i].source)]() -> Status {
      PrefetchPages(source);
      return {};
    });
  }

  const std::vector<Slice>& slices_;
  TaskQueue queue_;
};

}  // namespace nibble::repack
