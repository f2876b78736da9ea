// A whole file mapped read-only: how every container reads its tensors, so that bytes are paged in
// when touched and shared between processes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"

namespace nibble {

class MappedFile {
 public:
  // Maps `path`. Errors: cannot be opened, is not a regular file. An empty file gives an empty
  // span.
  static Result<MappedFile> Open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  // Valid as long as this object lives (moves included: the address stays).
  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  MappedFile() = default;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// For bytes of a mapping that are about to be read in order, and for those that have been: brings
// them in at once instead of page by page, and lets go of them, so that a long pass over a large
// file keeps little of it resident. Hints: reading the bytes is right before, between and after.
void PrefetchPages(std::span<const std::byte> mapped);
void ReleasePages(std::span<const std::byte> mapped);

// Where two ranges of mapped files of equal length first differ; nothing if they do not. A piece at
// a time is compared and let go of.
std::optional<size_t> FirstDifference(std::span<const std::byte> a, std::span<const std::byte> b);

// The whole content of a (small) text file.
Result<std::string> ReadTextFile(const std::filesystem::path& path);

}  // namespace nibble
