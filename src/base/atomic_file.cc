#include "base/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace nibble {

AtomicFile::AtomicFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_bytes_(other.size_bytes_),
      is_kept_(other.is_kept_) {}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!is_kept_) ::unlink(PartialPath().c_str());
}

std::filesystem::path AtomicFile::PartialPath() const { return path_.string() + ".partial"; }

Result<AtomicFile> AtomicFile::Create(const std::filesystem::path& path) {
  AtomicFile file(path, -1);
  file.fd_ = ::open(file.PartialPath().c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file.fd_ < 0) {
    return Fail("{}: cannot create: {}", file.PartialPath().string(), std::strerror(errno));
  }
  return file;
}

Result<AtomicFile> AtomicFile::Reopen(const std::filesystem::path& path, uint64_t n_bytes) {
  AtomicFile file(path, -1);
  file.is_kept_ = true;
  file.fd_ = ::open(file.PartialPath().c_str(), O_RDWR | O_CLOEXEC);
  if (file.fd_ < 0 || ::ftruncate(file.fd_, static_cast<off_t>(n_bytes)) != 0) {
    return Fail("{}: cannot go on with it: {}", file.PartialPath().string(), std::strerror(errno));
  }
  file.size_bytes_ = n_bytes;
  return file;
}

Status AtomicFile::Append(std::span<const std::byte> bytes) {
  NIBBLE_RETURN_IF_ERROR(WriteAt(size_bytes_, bytes));
  const uint64_t begin_bytes = std::exchange(size_bytes_, size_bytes_ + bytes.size());
  StartWriteback(begin_bytes, size_bytes_);
  return {};
}

// Lets the disk work on what has been written, chunk by chunk, so that Commit() finds little left
// to wait for and a large file does not fill the page cache with pages that cannot be dropped.
void AtomicFile::StartWriteback(uint64_t begin_bytes, uint64_t end_bytes) const {
  constexpr uint64_t kChunkBytes = uint64_t{16} << 20;
  const uint64_t begin = begin_bytes / kChunkBytes * kChunkBytes;
  const uint64_t end = end_bytes / kChunkBytes * kChunkBytes;
  if (begin < end) {
    ::sync_file_range(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                      SYNC_FILE_RANGE_WRITE);
  }
}

Status AtomicFile::WriteAt(uint64_t offset_bytes, std::span<const std::byte> bytes) {
  CHECK(fd_ >= 0);
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
    if (written < 0) {
      if (errno == EINTR) continue;
      return Fail("{}: cannot write at byte {}: {}", PartialPath().string(), offset_bytes,
                  std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset_bytes += static_cast<uint64_t>(written);
  }
  return {};
}

Status AtomicFile::ReadAt(uint64_t offset_bytes, std::span<std::byte> bytes) const {
  CHECK(fd_ >= 0);
  while (!bytes.empty()) {
    const ssize_t n_read =
        ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
    if (n_read < 0 && errno == EINTR) continue;
    if (n_read <= 0) {
      return Fail("{}: cannot read back at byte {}: {}", PartialPath().string(), offset_bytes,
                  n_read == 0 ? "the file ends there" : std::strerror(errno));
    }
    bytes = bytes.subspan(static_cast<size_t>(n_read));
    offset_bytes += static_cast<uint64_t>(n_read);
  }
  return {};
}

Status AtomicFile::Commit() {
  CHECK(fd_ >= 0);
  if (::fsync(fd_) != 0 || ::rename(PartialPath().c_str(), path_.c_str()) != 0) {
    return Fail("{}: cannot finish: {}", path_.string(), std::strerror(errno));
  }
  ::close(std::exchange(fd_, -1));
  const std::filesystem::path parent = path_.has_parent_path() ? path_.parent_path() : ".";
  const int directory = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return Fail("{}: cannot open: {}", parent.string(), std::strerror(errno));
  const int synced = ::fsync(directory);
  ::close(directory);
  if (synced != 0) return Fail("{}: cannot sync: {}", parent.string(), std::strerror(errno));
  return {};
}

Status WriteFile(const std::filesystem::path& path, std::string_view content) {
  NIBBLE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  NIBBLE_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(content))));
  return file.Commit();
}

}  // namespace nibble
