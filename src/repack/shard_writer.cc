#include "repack/shard_writer.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/mapped_file.h"

namespace nibble::repack {

void PiecePool::WaitForPlace() {
  std::unique_lock lock(mutex_);
  given_back_.wait(lock, [this] { return n_free_ > 0; });
  --n_free_;
}

void PiecePool::GiveBack(std::unique_ptr<std::vector<std::byte>> buffer) {
  const std::lock_guard lock(mutex_);
  if (buffer != nullptr) idle_.push_back(std::move(buffer));
  ++n_free_;
  given_back_.notify_one();
}

PiecePool::Buffer PiecePool::Take(size_t n_bytes) {
  WaitForPlace();
  std::unique_ptr<std::vector<std::byte>> buffer;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      buffer = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (buffer == nullptr) buffer = std::make_unique<std::vector<std::byte>>();
  if (buffer->size() < n_bytes) buffer->resize(n_bytes);
  return {buffer.release(), [this](std::vector<std::byte>* taken) {
            GiveBack(std::unique_ptr<std::vector<std::byte>>(taken));
          }};
}

Piece PiecePool::TakeFor(std::span<const std::byte> mapped) {
  WaitForPlace();
  const auto give_back = [this, mapped](const void*) {
    ReleasePages(mapped);
    GiveBack(nullptr);
  };
  return {mapped, std::shared_ptr<const void>(mapped.data(), give_back)};
}

Result<std::unique_ptr<ShardWriter>> ShardWriter::Create(const std::filesystem::path& path,
                                                         std::string_view header) {
  NIBBLE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  std::unique_ptr<ShardWriter> writer(new ShardWriter(std::move(file)));
  const auto bytes = std::as_bytes(std::span(header));
  NIBBLE_RETURN_IF_ERROR(writer->file_.Append(bytes));
  writer->digest_.Update(bytes);
  writer->position_bytes_ = bytes.size();
  return writer;
}

Result<std::unique_ptr<ShardWriter>> ShardWriter::Resume(const std::filesystem::path& path,
                                                         const WrittenFile& beginning) {
  std::error_code error;
  const std::filesystem::path partial = path.string() + ".partial";
  if (std::filesystem::file_size(partial, error) < beginning.size_bytes || error) return nullptr;
  NIBBLE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Reopen(path, beginning.size_bytes));
  std::unique_ptr<ShardWriter> writer(new ShardWriter(std::move(file)));
  NIBBLE_RETURN_IF_ERROR(writer->Hash(0, beginning.size_bytes));
  if (writer->digest_.Hex() != beginning.sha256) return nullptr;
  writer->position_bytes_ = beginning.size_bytes;
  return writer;
}

Status ShardWriter::WriteNext(Piece piece) {
  position_bytes_ += piece.bytes.size();
  writing_.Push([this, piece] { return file_.Append(piece.bytes); });
  hashing_.Push([this, piece = std::move(piece)]() -> Status {
    digest_.Update(piece.bytes);
    return {};
  });
  return writing_.status();
}

Status ShardWriter::WriteAhead(uint64_t offset_bytes, Piece piece) {
  CHECK(offset_bytes >= position_bytes_);
  writing_.Push([this, offset_bytes, piece = std::move(piece)] {
    return file_.WriteAt(offset_bytes, piece.bytes);
  });
  return writing_.status();
}

Status ShardWriter::PassWritten(uint64_t n_bytes) {
  const uint64_t begin_bytes = std::exchange(position_bytes_, position_bytes_ + n_bytes);
  const uint64_t end_bytes = position_bytes_;
  const uint64_t all_written = writing_.Push([this, n_bytes] {
    file_.Skip(n_bytes);
    return Status();
  });
  hashing_.Push([this, all_written, begin_bytes, end_bytes]() -> Status {
    NIBBLE_RETURN_IF_ERROR(writing_.WaitFor(all_written));
    return Hash(begin_bytes, end_bytes);
  });
  return writing_.status();
}

Status ShardWriter::Hash(uint64_t begin_bytes, uint64_t end_bytes) {
  constexpr uint64_t kReadBytes = uint64_t{1} << 20;
  while (begin_bytes < end_bytes) {
    read_back_.resize(std::min(kReadBytes, end_bytes - begin_bytes));
    NIBBLE_RETURN_IF_ERROR(file_.ReadAt(begin_bytes, read_back_));
    digest_.Update(read_back_);
    begin_bytes += read_back_.size();
  }
  return {};
}

Result<WrittenFile> ShardWriter::Drain() {
  NIBBLE_RETURN_IF_ERROR(writing_.Drain());
  NIBBLE_RETURN_IF_ERROR(hashing_.Drain());
  return WrittenFile{.size_bytes = position_bytes_, .sha256 = digest_.Hex()};
}

Result<WrittenFile> ShardWriter::Commit() {
  NIBBLE_ASSIGN_OR_RETURN(WrittenFile written, Drain());
  CHECK(file_.size_bytes() == position_bytes_);
  NIBBLE_RETURN_IF_ERROR(file_.Commit());
  return written;
}

}  // namespace nibble::repack
