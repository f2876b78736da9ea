// A run on disk: DIR/manifest.json (what was asked of whom, and how), DIR/records.jsonl (one line
// per item, written as its answer comes) and, at the end, DIR/summary.json.
//
// A run that was broken off goes on where it stopped, and only as the same run: suite and target
// must be those of the manifest. Tested by run_test.cc and tests/interop/test_eval.py.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "measure/suite.h"
#include "measure/target.h"

namespace nibble::measure {

inline constexpr const char* kManifest = "manifest.json";

// The manifest's part that two runs must share to be compared: {"name", "sha256", "items",
// "settings"}.
Json ManifestOf(const Suite& suite);

// Where two manifests' parts differ, in one line: "settings/n: 40 here, 100 there"; "" nowhere.
std::string FirstDifference(const Json& here, const Json& there);

class RunWriter {
 public:
  // Begins a run in a new directory, or goes on with the one in `dir`. manifest: {"suite",
  // "target", ...}. Errors: `dir` holds something else, a run of another suite or target, a damaged
  // record (a last line without its end is what a broken-off run leaves, and is dropped), or
  // another process writes there.
  static Result<RunWriter> Open(const std::filesystem::path& dir, const Json& manifest);

  RunWriter(RunWriter&& other) noexcept;
  RunWriter& operator=(RunWriter&&) = delete;
  ~RunWriter();

  // Those that the run already had.
  const std::vector<Json>& records() const { return records_; }
  Status Append(const Json& record);
  Status WriteSummary(const Json& summary);

 private:
  RunWriter(std::filesystem::path dir, int fd) : dir_(std::move(dir)), fd_(fd) {}

  std::filesystem::path dir_;
  int fd_;  // of records.jsonl
  std::vector<Json> records_;
};

struct Run {
  Json manifest;
  std::vector<Json> records;
  Json summary = Json::object();  // empty: the run has not come to its end
};

Result<Run> ReadRun(const std::filesystem::path& dir);

struct SuiteResult {
  std::vector<Json> records;        // in the items' order, of those that were answered
  std::vector<std::string> faults;  // of the others: "id: what"
};

// Asks what the run has no record of yet. writer: nullptr keeps records in memory alone.
Result<SuiteResult> RunSuite(Target& target, const Suite& suite, int concurrency, RunWriter* writer,
                             const std::function<void(size_t n_done, size_t n)>& on_progress);

}  // namespace nibble::measure
