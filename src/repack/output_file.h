// The single file that a gguf repack writes: OUT.partial until it is whole, then renamed to OUT.
//
// What a run that was killed has written is not lost. OUT.resume.json says what is being made (a
// JSON value of the caller's) and, from time to time, how far the file is whole: so many bytes with
// such a SHA-256, and a note of the caller's. A later run that makes the same goes on from there,
// if the beginning still has that digest, else anew. The file goes only when Discard() is called:
// the input was at fault, so that no later run could finish.
// Tested by output_file_test.cc, and by killing in tests/interop/test_scale.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "repack/shard_writer.h"

namespace nibble::repack {

class OutputFile {
 public:
  // `out` must not exist; with `resume`, a run killed while finishing may have left it. The file
  // begins with `header`; n_bytes: what all of it will take. Errors: something is in the way, or
  // the disk has no room, advice included; with `resume`, what differs between `made` and what the
  // interrupted run made.
  static Result<OutputFile> Open(const std::filesystem::path& out, const Json& made,
                                 std::string_view header, uint64_t n_bytes, bool resume);

  // Whether it stands there, and no run has left anything to go on with.
  static bool IsFinished(const std::filesystem::path& out);

  // Whether an interrupted run had left it.
  bool was_begun() const { return was_begun_; }
  // Where the next bytes stand: after the header, or where an interrupted run's last note was made.
  uint64_t position_bytes() const { return position_bytes_; }
  // That note; null if there is none.
  const Json& note() const { return note_; }

  Status WriteNext(Piece piece);
  // What was written so far is what a later run goes on with. Waits until it is.
  Status Note(const Json& note);
  Result<WrittenFile> Commit();
  void Discard();
  // Whether a later run can go on with it.
  bool is_resumable() const;

 private:
  OutputFile(std::filesystem::path out, Json made) : out_(std::move(out)), made_(std::move(made)) {}

  std::filesystem::path PartialPath() const { return out_.string() + ".partial"; }
  std::filesystem::path ManifestPath() const { return out_.string() + ".resume.json"; }
  Status ReadManifest(WrittenFile* beginning);
  Status WriteManifest(const WrittenFile& beginning) const;

  std::filesystem::path out_;
  Json made_;
  bool was_begun_ = false;
  Json note_;
  uint64_t position_bytes_ = 0;
  std::unique_ptr<ShardWriter> writer_;  // null: a run was killed when only the manifest was left
  WrittenFile whole_;                    // in that case
};

}  // namespace nibble::repack
