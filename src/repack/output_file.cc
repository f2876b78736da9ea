#include "repack/output_file.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/atomic_file.h"
#include "base/check.h"
#include "base/sha256.h"
#include "repack/resume.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMadeWith = "made";
constexpr const char* kBytes = "bytes";
constexpr const char* kSha256 = "sha256";
constexpr const char* kNote = "note";

}  // namespace

Result<OutputFile> OutputFile::Open(const fs::path& out, const Json& made, std::string_view header,
                                    uint64_t n_bytes, bool resume) {
  OutputFile file(out, made);
  std::error_code error;
  const bool was_begun = fs::exists(file.ManifestPath(), error);
  file.was_begun_ = was_begun;
  WrittenFile beginning;
  if (was_begun && !resume) return LeftByInterruptedRun(file.ManifestPath());
  if (was_begun) NIBBLE_RETURN_IF_ERROR(file.ReadManifest(&beginning));
  if (fs::exists(out, error)) {
    const bool is_whole = was_begun && Sha256HexOfFile(out).value_or("") == beginning.sha256;
    if (!is_whole) return Fail("{}: exists already", out.string());
    file.whole_ = beginning;
    file.position_bytes_ = beginning.size_bytes;
    return file;
  }
  if (!was_begun && fs::exists(fs::symlink_status(file.PartialPath(), error))) {
    return Fail("{}: is in the way, and no interrupted run can have left it: {} is missing",
                file.PartialPath().string(), file.ManifestPath().filename().string());
  }
  const fs::path parent = out.has_parent_path() ? out.parent_path() : ".";
  NIBBLE_RETURN_IF_ERROR(CheckRoom(parent, n_bytes - std::min(n_bytes, beginning.size_bytes)));
  if (beginning.size_bytes > 0) {
    NIBBLE_ASSIGN_OR_RETURN(file.writer_, ShardWriter::Resume(out, beginning));
  }
  if (file.writer_ == nullptr) {
    file.note_ = nullptr;
    NIBBLE_RETURN_IF_ERROR(file.WriteManifest({}));
    NIBBLE_ASSIGN_OR_RETURN(file.writer_, ShardWriter::Create(out, header));
  }
  file.writer_->Keep();
  file.position_bytes_ = file.writer_->position_bytes();
  return file;
}

Status OutputFile::ReadManifest(WrittenFile* beginning) {
  const fs::path path = ManifestPath();
  NIBBLE_ASSIGN_OR_RETURN(const Json manifest, ReadJsonFile(path));
  const bool is_one = manifest.is_object() && manifest.contains(kMadeWith) &&
                      manifest.contains(kNote) && manifest.contains(kBytes) &&
                      manifest[kBytes].is_number_unsigned() && manifest.contains(kSha256) &&
                      manifest[kSha256].is_string();
  if (!is_one) return Fail("{}: not a manifest of an interrupted run", path.string());
  NIBBLE_RETURN_IF_ERROR(CheckMade(path, manifest[kMadeWith], made_));
  note_ = manifest[kNote];
  manifest[kBytes].get_to(beginning->size_bytes);
  manifest[kSha256].get_to(beginning->sha256);
  return {};
}

Status OutputFile::WriteManifest(const WrittenFile& beginning) const {
  const Json manifest = {{kMadeWith, made_},
                         {kBytes, beginning.size_bytes},
                         {kSha256, beginning.sha256},
                         {kNote, note_}};
  return WriteFile(ManifestPath(), manifest.dump() + "\n");
}

Status OutputFile::WriteNext(Piece piece) {
  CHECK(writer_ != nullptr);
  position_bytes_ += piece.bytes.size();
  return writer_->WriteNext(std::move(piece));
}

Status OutputFile::Note(const Json& note) {
  CHECK(writer_ != nullptr);
  NIBBLE_ASSIGN_OR_RETURN(const WrittenFile written, writer_->Drain());
  note_ = note;
  return WriteManifest(written);
}

Result<WrittenFile> OutputFile::Commit() {
  WrittenFile written = whole_;
  if (writer_ != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(written, writer_->Commit());
  }
  std::error_code error;
  fs::remove(ManifestPath(), error);
  if (error) return Fail("{}: cannot remove: {}", ManifestPath().string(), error.message());
  return written;
}

bool OutputFile::is_resumable() const {
  std::error_code error;
  return fs::exists(ManifestPath(), error);
}

bool OutputFile::IsFinished(const fs::path& out) {
  std::error_code error;
  return fs::exists(out, error) && !OutputFile(out, {}).is_resumable();
}

void OutputFile::Discard() {
  writer_.reset();
  std::error_code ignored;
  fs::remove(PartialPath(), ignored);
  fs::remove(ManifestPath(), ignored);
}

}  // namespace nibble::repack
