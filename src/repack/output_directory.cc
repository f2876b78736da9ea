#include "repack/output_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/sha256.h"
#include "repack/resume.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kManifest = "nibble-resume.json";
constexpr std::string_view kSums = "SHA256SUMS";
constexpr std::string_view kFinished = "finished";
constexpr std::string_view kMade = "made";

bool IsMissingOrEmpty(const fs::path& dir) {
  std::error_code error;
  return !fs::exists(fs::symlink_status(dir, error)) ||
         (fs::is_directory(dir, error) && fs::is_empty(dir, error));
}

// Whether a run was killed before its first manifest was whole: nothing else is in the directory.
bool IsJustBegun(const fs::path& dir) {
  std::error_code error;
  const fs::directory_iterator entries(dir, error);
  const std::string begun = fmt::format("{}.partial", kManifest);
  return !error && std::ranges::all_of(entries, [&](const fs::directory_entry& entry) {
    return entry.path().filename() == begun;
  });
}

Status SyncDirectory(const fs::path& dir) {
  const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Fail("{}: cannot open: {}", dir.string(), std::strerror(errno));
  const int synced = ::fsync(fd);
  ::close(fd);
  if (synced != 0) return Fail("{}: cannot sync: {}", dir.string(), std::strerror(errno));
  return {};
}

// Whether a manifest's entry is one, and its file still what it says.
bool IsStill(const fs::path& path, const Json& file) {
  std::error_code error;
  if (!file.is_object() || !file.contains("note") || !file.contains("bytes") ||
      !file.contains("sha256") || file["bytes"] != fs::file_size(path, error) || error) {
    return false;
  }
  const Result<std::string> sha256 = Sha256HexOfFile(path);
  return sha256.has_value() && file["sha256"] == *sha256;
}

}  // namespace

Result<OutputDirectory> OutputDirectory::Open(const fs::path& out, const Json& made,
                                              uint64_t n_bytes, bool resume) {
  const fs::path partial = out.string() + ".partial";
  std::error_code error;
  if (resume && fs::exists(out / kManifest, error)) {
    OutputDirectory directory(out, out, made);
    NIBBLE_RETURN_IF_ERROR(directory.ReadManifest());
    return directory;
  }
  if (!IsMissingOrEmpty(out)) {
    return Fail("{}: exists already; expected a new or an empty directory", out.string());
  }
  OutputDirectory directory(out, partial, made);
  if (fs::exists(partial / kManifest, error)) {
    if (!resume) {
      return LeftByInterruptedRun(partial);
    }
    NIBBLE_RETURN_IF_ERROR(directory.ReadManifest());
    uint64_t finished_bytes = 0;
    for (const auto& [name, file] : directory.finished_.items()) {
      finished_bytes += file["bytes"].get<uint64_t>();
    }
    NIBBLE_RETURN_IF_ERROR(CheckRoom(partial, n_bytes - std::min(n_bytes, finished_bytes)));
    return directory;
  }
  if (fs::exists(fs::symlink_status(partial, error)) && !IsJustBegun(partial)) {
    return Fail("{}: is in the way, and no interrupted run can have left it: {} is missing",
                partial.string(), kManifest);
  }
  fs::create_directories(partial, error);
  if (error) return Fail("{}: cannot create: {}", partial.string(), error.message());
  if (const Status room = CheckRoom(partial, n_bytes); !room.has_value()) {
    directory.Discard();
    return std::unexpected(room.error());
  }
  NIBBLE_RETURN_IF_ERROR(directory.WriteManifest());
  return directory;
}

Status OutputDirectory::ReadManifest() {
  const fs::path path = path_ / kManifest;
  NIBBLE_ASSIGN_OR_RETURN(const Json manifest, ReadJsonFile(path));
  if (!manifest.is_object() || !manifest.contains(kMade) || !manifest.contains(kFinished) ||
      !manifest[kFinished].is_object()) {
    return Fail("{}: not a manifest of an interrupted run", path.string());
  }
  NIBBLE_RETURN_IF_ERROR(CheckMade(path_, manifest[kMade], made_));
  for (const auto& [name, file] : manifest[kFinished].items()) {
    if (!IsStill(path_ / name, file)) continue;
    finished_[name] = file;
    digests_[name] = file["sha256"].get<std::string>();
  }
  return {};
}

Status OutputDirectory::WriteManifest() const {
  return WriteFile(path_ / kManifest, Json{{kMade, made_}, {kFinished, finished_}}.dump() + "\n");
}

Json OutputDirectory::FindFinished(const std::string& name) const {
  return finished_.contains(name) ? finished_[name].at("note") : Json();
}

Status OutputDirectory::AddFinished(const std::string& name, const WrittenFile& file,
                                    const Json& note) {
  digests_[name] = file.sha256;
  finished_[name] = {{"bytes", file.size_bytes}, {"sha256", file.sha256}, {"note", note}};
  return WriteManifest();
}

Status OutputDirectory::WriteText(const std::string& name, std::string_view content) {
  digests_[name] = Sha256Hex(std::as_bytes(std::span(content)));
  return WriteFile(path_ / name, content);
}

Status OutputDirectory::Commit() {
  std::string sums;
  for (const auto& [name, sha256] : digests_) sums += fmt::format("{}  {}\n", sha256, name);
  NIBBLE_RETURN_IF_ERROR(WriteFile(path_ / kSums, sums));
  if (path_ != out_) {
    if (::rename(path_.c_str(), out_.c_str()) != 0) {
      return Fail("{}: cannot rename to {}: {}", path_.string(), out_.string(),
                  std::strerror(errno));
    }
    path_ = out_;
    NIBBLE_RETURN_IF_ERROR(SyncDirectory(out_.has_parent_path() ? out_.parent_path() : "."));
  }
  std::error_code error;
  fs::remove(out_ / kManifest, error);
  if (error) return Fail("{}: cannot remove: {}", (out_ / kManifest).string(), error.message());
  return {};
}

void OutputDirectory::Discard() {
  std::error_code ignored;
  if (path_ != out_) fs::remove_all(path_, ignored);
}

}  // namespace nibble::repack
