#include "kernels/tile_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/atomic_file.h"
#include "base/check.h"
#include "base/huge_memory.h"

namespace nibble::kernels {
namespace {

constexpr int64_t kAlignmentBytes = 64;  // a cache line, and the widest vector
constexpr int64_t kChunkBytes = int64_t{64} << 20;

// A saved store: one page that begins with this text, then the pieces in order, each aligned.
constexpr size_t kHeaderBytes = 4096;
std::string Header(int64_t data_bytes, std::string_view key) {
  std::string header = fmt::format("nibble tiles, layout 1\n{} bytes\n{}\n", data_bytes, key);
  CHECK(header.size() <= kHeaderBytes);
  header.resize(kHeaderBytes);
  return header;
}

int64_t RoundUp(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

Result<TileStore> TileStore::Open(const std::filesystem::path& path, std::string_view key,
                                  ThreadPool& pool) {
  NIBBLE_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  const auto file = std::make_shared<const MappedFile>(std::move(mapped));
  const std::span<const std::byte> bytes = file->bytes();
  const auto data_bytes = static_cast<int64_t>(bytes.size()) - static_cast<int64_t>(kHeaderBytes);
  if (data_bytes < 0 ||
      std::memcmp(bytes.data(), Header(data_bytes, key).data(), kHeaderBytes) != 0) {
    return Fail("{}: not the tiled weights of this model and this version of nibble",
                path.string());
  }
  PrefetchPages(bytes);
  TileStore store(pool);
  store.file_ = file;
  // Never written through: is_filled() tells.
  auto* const data = const_cast<std::byte*>(bytes.data()) + kHeaderBytes;
  store.chunk_ = std::shared_ptr<std::byte[]>(file, data);
  store.chunk_bytes_ = data_bytes;
  return store;
}

std::shared_ptr<std::byte[]> TileStore::Take(int64_t bytes) {
  const int64_t taken_bytes = RoundUp(std::max<int64_t>(bytes, 1), kAlignmentBytes);
  if (chunk_taken_bytes_ + taken_bytes > chunk_bytes_) {
    if (is_filled()) return nullptr;
    chunk_bytes_ = RoundUp(std::max(taken_bytes, kChunkBytes), kHugePageBytes);
    chunk_ = AllocateHuge(chunk_bytes_);
    chunk_taken_bytes_ = 0;
  }
  const std::shared_ptr<std::byte[]> piece(chunk_, chunk_.get() + chunk_taken_bytes_);
  chunk_taken_bytes_ += taken_bytes;
  pieces_.emplace_back(piece, taken_bytes);
  return piece;
}

Status TileStore::Save(const std::filesystem::path& path, std::string_view key) const {
  int64_t data_bytes = 0;
  for (const auto& [piece, bytes] : pieces_) data_bytes += bytes;
  NIBBLE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  const std::string header = Header(data_bytes, key);
  NIBBLE_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(header))));
  for (const auto& [piece, bytes] : pieces_) {
    NIBBLE_RETURN_IF_ERROR(file.Append({piece.get(), static_cast<size_t>(bytes)}));
  }
  return file.Commit();
}

}  // namespace nibble::kernels
