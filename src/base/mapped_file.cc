#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace nibble {
namespace {

// Closes on scope exit: the mapping outlives its descriptor.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

struct Pages {
  void* begin;
  size_t n_bytes;
};

// The pages that hold these bytes, those of their neighbours at both ends included.
Pages WholePages(std::span<const std::byte> mapped) {
  static const auto kPageBytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  if (mapped.empty()) return {nullptr, 0};
  const uintptr_t past = reinterpret_cast<uintptr_t>(mapped.data()) % kPageBytes;
  return {const_cast<std::byte*>(mapped.data()) - past, past + mapped.size()};
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must fail below, not wait for a writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return Fail("{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat info{};
  if (::fstat(file.fd, &info) != 0) {
    return Fail("{}: cannot stat: {}", path.string(), std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return Fail("{}: not a regular file", path.string());

  MappedFile mapped;
  mapped.path_ = path;
  mapped.size_bytes_ = static_cast<size_t>(info.st_size);
  if (mapped.size_bytes_ > 0) {
    void* data = ::mmap(nullptr, mapped.size_bytes_, PROT_READ, MAP_SHARED, file.fd, 0);
    if (data == MAP_FAILED) {
      return Fail("{}: cannot map {} bytes: {}", path.string(), mapped.size_bytes_,
                  std::strerror(errno));
    }
    mapped.data_ = static_cast<const std::byte*>(data);
  }
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_bytes_);
}

void PrefetchPages(std::span<const std::byte> mapped) {
  const auto [begin, n_bytes] = WholePages(mapped);
  if (n_bytes == 0) return;
  ::madvise(begin, n_bytes, MADV_WILLNEED);  // starts reading the whole of it
#ifdef MADV_POPULATE_READ                    // Linux 5.14; older kernels refuse it
  ::madvise(begin, n_bytes, MADV_POPULATE_READ);
#endif
}

void ReleasePages(std::span<const std::byte> mapped) {
  const auto [begin, n_bytes] = WholePages(mapped);
  if (n_bytes > 0) ::madvise(begin, n_bytes, MADV_DONTNEED);
}

std::optional<size_t> FirstDifference(std::span<const std::byte> a, std::span<const std::byte> b) {
  constexpr size_t kPieceBytes = size_t{8} << 20;
  CHECK(a.size() == b.size());
  for (size_t begin = 0; begin < a.size(); begin += kPieceBytes) {
    const auto left = a.subspan(begin, std::min(kPieceBytes, a.size() - begin));
    const auto right = b.subspan(begin, left.size());
    if (std::memcmp(left.data(), right.data(), left.size()) != 0) {
      return begin + static_cast<size_t>(std::ranges::mismatch(left, right).in1 - left.begin());
    }
    ReleasePages(left);
    ReleasePages(right);
  }
  return std::nullopt;
}

Result<std::string> ReadTextFile(const std::filesystem::path& path) {
  NIBBLE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const auto bytes = file.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace nibble
