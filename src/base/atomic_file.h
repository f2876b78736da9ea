// A file that appears under its name only when it is whole: written to "NAME.partial", synced,
// renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/result.h"

namespace nibble {

class AtomicFile {
 public:
  static Result<AtomicFile> Create(const std::filesystem::path& path);
  // Goes on with the first n_bytes of the partial file that Keep() has left.
  static Result<AtomicFile> Reopen(const std::filesystem::path& path, uint64_t n_bytes);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  // Removes the partial file unless Commit() succeeded or Keep() was called.
  ~AtomicFile();
  void Keep() { is_kept_ = true; }

  Status Append(std::span<const std::byte> bytes);
  // Writes at a place of its own; Append() goes on where it was.
  Status WriteAt(uint64_t offset_bytes, std::span<const std::byte> bytes);
  // What was written there, from any thread; an error if it is not all there.
  Status ReadAt(uint64_t offset_bytes, std::span<std::byte> bytes) const;
  // Goes on after n_bytes that WriteAt() has written or will have when Commit() is called.
  void Skip(uint64_t n_bytes) { size_bytes_ += n_bytes; }
  uint64_t size_bytes() const { return size_bytes_; }  // appended or skipped so far
  const std::filesystem::path& path() const { return path_; }

  // fsync, rename to the final name, fsync of the directory.
  Status Commit();

 private:
  AtomicFile(std::filesystem::path path, int fd);
  std::filesystem::path PartialPath() const;
  void StartWriteback(uint64_t begin_bytes, uint64_t end_bytes) const;

  std::filesystem::path path_;
  int fd_;
  uint64_t size_bytes_ = 0;
  bool is_kept_ = false;
};

// Writes a small file in one go, atomically.
Status WriteFile(const std::filesystem::path& path, std::string_view content);

}  // namespace nibble
