// One output shard, written behind its maker's back: pieces are handed over, and one thread writes
// them while another computes the file's SHA-256, so that packing, writing and hashing overlap and
// nothing is read a second time from the disk.
//
// Bytes that come before their turn (a tensor's scales, which the file holds after all of its
// codes) go to their place at once and are hashed from the page cache when the file has got there;
// so no tensor's size costs memory. Pieces keep what they own until both threads are done with
// them: their maker bounds memory by bounding what it hands over (PiecePool).
// Tested by shard_writer_test.cc.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/result.h"
#include "base/sha256.h"
#include "base/task_queue.h"

namespace nibble::repack {

// Bytes to be written, and what keeps them alive.
struct Piece {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

// Buffers for pieces: so many exist at once, and who wants one more waits. Must outlive them.
class PiecePool {
 public:
  explicit PiecePool(int n_buffers) : n_free_(n_buffers) {}

  using Buffer = std::shared_ptr<std::vector<std::byte>>;
  // A buffer of at least this size, its content undefined; given back when the last owner goes.
  Buffer Take(size_t n_bytes);
  // Takes a buffer's place, without its memory, for bytes of a mapped file; when the last owner
  // goes, their pages are released (base/mapped_file.h).
  Piece TakeFor(std::span<const std::byte> mapped);

 private:
  void WaitForPlace();
  void GiveBack(std::unique_ptr<std::vector<std::byte>> buffer);

  std::mutex mutex_;
  std::condition_variable given_back_;
  int n_free_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> idle_;
};

struct WrittenFile {
  uint64_t size_bytes = 0;
  std::string sha256;
};

// To be used from one thread. Errors of the threads behind come out of the next call.
class ShardWriter {
 public:
  // The file appears under `path` when committed (base/atomic_file.h). It begins with `header`.
  static Result<std::unique_ptr<ShardWriter>> Create(const std::filesystem::path& path,
                                                     std::string_view header);

  // Goes on after the beginning of a file that was kept; null if it is not what it was any more.
  static Result<std::unique_ptr<ShardWriter>> Resume(const std::filesystem::path& path,
                                                     const WrittenFile& beginning);

  // From now on an interrupted file stays, as PATH.partial.
  void Keep() { file_.Keep(); }

  // Where the next bytes in the file's order stand.
  uint64_t position_bytes() const { return position_bytes_; }

  Status WriteNext(Piece piece);
  // At a place after position_bytes(), which PassWritten() goes over later.
  Status WriteAhead(uint64_t offset_bytes, Piece piece);
  // The next n_bytes have all been written ahead.
  Status PassWritten(uint64_t n_bytes);

  // All that was handed over, when both threads are done with it: what Resume() goes on with.
  Result<WrittenFile> Drain();
  // The same; the file is on disk under its name then.
  Result<WrittenFile> Commit();

 private:
  explicit ShardWriter(AtomicFile file) : file_(std::move(file)) {}

  Status Hash(uint64_t begin_bytes, uint64_t end_bytes);

  AtomicFile file_;
  Sha256 digest_;
  uint64_t position_bytes_ = 0;
  std::vector<std::byte> read_back_;  // the hashing thread's
  // Last: their threads use the members above. The hashing one waits for the writing one, which
  // therefore outlives it.
  TaskQueue writing_;
  TaskQueue hashing_;
};

}  // namespace nibble::repack
