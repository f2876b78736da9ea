// The directory that a repack writes: OUT.partial until everything is in it, then renamed to OUT,
// so that OUT exists complete or not at all.
//
// What a run that was killed has finished is not lost. A manifest in OUT.partial says what is being
// made (a JSON value of the caller's: options and source) and which files are finished, with size
// and SHA-256; it is rewritten, synced, after each of them. A later run that makes the same may go
// on from there. The directory goes only when Discard() is called: the input was at fault, so that
// no later run could finish.
// SHA256SUMS lists every other file, as `sha256sum -c` reads it. The manifest is removed after the
// renaming, so that a run killed at any point leaves something that a later one can finish.
// Tested by output_directory_test.cc, and by killing in tests/interop/test_scale.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "repack/shard_writer.h"

namespace nibble::repack {

class OutputDirectory {
 public:
  // `out` must not exist or be an empty directory; with `resume`, it may also be what a run killed
  // while finishing has left. n_bytes: what all files will take, about. Errors: something is in the
  // way, or the disk has no room, advice included; with `resume`, what differs between `made` and
  // what the interrupted run made. Finished files that are not what they were any more are
  // forgotten.
  static Result<OutputDirectory> Open(const std::filesystem::path& out, const Json& made,
                                      uint64_t n_bytes, bool resume);

  const std::filesystem::path& path() const { return path_; }

  // What an interrupted run noted about a file it finished; null if it did not.
  Json FindFinished(const std::string& name) const;
  // A file that is under its final name and synced. `note` comes back from FindFinished().
  Status AddFinished(const std::string& name, const WrittenFile& file, const Json& note);

  // A small file in one go.
  Status WriteText(const std::string& name, std::string_view content);

  Status Commit();
  void Discard();

 private:
  OutputDirectory(std::filesystem::path out, std::filesystem::path path, Json made)
      : out_(std::move(out)), path_(std::move(path)), made_(std::move(made)) {}

  Status ReadManifest();
  Status WriteManifest() const;

  std::filesystem::path out_;
  std::filesystem::path path_;  // out_ itself when only its manifest is left to be removed
  Json made_;
  Json finished_ = Json::object();              // name -> {bytes, sha256, note}
  std::map<std::string, std::string> digests_;  // of every file written, by name
};

}  // namespace nibble::repack
