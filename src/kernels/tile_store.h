// Where tiled weights stand: memory that is written once, when a model is loaded, and read for
// every token after. In huge pages where the system gives them, because a token's pass over all
// weights would miss the TLB at every small page.
//
// A store can be saved, and opened again as a mapped file: then what is taken from it is there
// already, and loading has nothing to do (but a file's small pages cost a tenth of decoding's
// speed). Pieces are told apart by their order alone, so a saved
// store belongs to one sequence of takes; its key says to which. Not thread-safe. Tested by
// tile_store_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "base/thread_pool.h"

namespace nibble::kernels {

class TileStore {
 public:
  // Empty; weights are tiled on this pool, which must outlive the store.
  explicit TileStore(ThreadPool& pool) : pool_(pool) {}

  // What Save wrote under this key. Errors: there is no such file, it is of another key or version,
  // or not whole.
  static Result<TileStore> Open(const std::filesystem::path& path, std::string_view key,
                                ThreadPool& pool);

  // The next piece: 64-byte aligned, shared by all who hold it, kept until the last one goes. Of a
  // store that was opened, it holds what was saved and may not be written; null if no piece is
  // left.
  std::shared_ptr<std::byte[]> Take(int64_t bytes);

  // Writes all pieces, atomically. Error: disk full, no such directory.
  Status Save(const std::filesystem::path& path, std::string_view key) const;

  // Whether pieces hold their bytes when they are taken.
  bool is_filled() const { return file_ != nullptr; }
  ThreadPool& pool() const { return pool_; }

 private:
  ThreadPool& pool_;
  std::shared_ptr<std::byte[]> chunk_;  // where pieces come from: huge pages, or the mapped file
  int64_t chunk_bytes_ = 0;
  int64_t chunk_taken_bytes_ = 0;
  std::vector<std::pair<std::shared_ptr<std::byte[]>, int64_t>> pieces_;  // with their sizes
  std::shared_ptr<const MappedFile> file_;
};

}  // namespace nibble::kernels
