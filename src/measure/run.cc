#include "measure/run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/atomic_file.h"
#include "base/mapped_file.h"

namespace nibble::measure {
namespace {

constexpr const char* kRecords = "records.jsonl";
constexpr const char* kSummary = "summary.json";

// The records of whole lines; n_whole_bytes: where the last one ends.
Result<std::vector<Json>> ParseRecords(std::string_view text, const std::string& where,
                                       size_t* n_whole_bytes) {
  std::vector<Json> records;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n', begin)) {
    NIBBLE_ASSIGN_OR_RETURN(Json record,
                            ParseJson(text.substr(begin, end - begin),
                                      fmt::format("{} line {}", where, records.size() + 1)));
    if (!record.is_object() || !record.contains("id") || !record["id"].is_string()) {
      return Fail("{} line {}: expected an object with a string \"id\"", where, records.size() + 1);
    }
    records.push_back(std::move(record));
    begin = end + 1;
  }
  *n_whole_bytes = begin;
  return records;
}

Status CreateRun(const std::filesystem::path& dir, const Json& manifest) {
  std::error_code fault;
  if (std::filesystem::exists(dir, fault) && !std::filesystem::is_empty(dir, fault)) {
    return Fail("--out {}: holds no {}; expected a new directory or one of a run", dir.string(),
                kManifest);
  }
  std::filesystem::create_directories(dir, fault);
  if (fault) return Fail("--out {}: {}", dir.string(), fault.message());
  return WriteFile(dir / kManifest, manifest.dump(2) + "\n");
}

Status CheckSameRun(const std::filesystem::path& dir, const Json& manifest) {
  NIBBLE_ASSIGN_OR_RETURN(const Json there, ReadJsonFile(dir / kManifest));
  for (const char* part : {"suite", "target"}) {
    const std::string difference =
        FirstDifference(manifest.at(part), there.value(part, Json::object()));
    if (!difference.empty()) {
      return Fail("--out {}: holds another run: {}/{}", dir.string(), part, difference);
    }
  }
  return {};
}

}  // namespace

Json ManifestOf(const Suite& suite) {
  return {{"name", suite.name},
          {"sha256", HashOf(suite)},
          {"items", suite.items.size()},
          {"settings", suite.settings}};
}

std::string FirstDifference(const Json& here, const Json& there) {
  if (here == there) return "";
  if (here.is_object() && there.is_object()) {
    // The digest says least about what differs, so it comes last.
    for (const bool digests : {false, true}) {
      for (const Json* side : {&here, &there}) {
        for (const auto& [key, value] : side->items()) {
          if ((key == "sha256") != digests) continue;
          const std::string inner =
              FirstDifference(here.value(key, Json()), there.value(key, Json()));
          if (inner.empty()) continue;
          return fmt::format("{}{}{}", key, inner.starts_with(": ") ? "" : "/", inner);
        }
      }
    }
  }
  return fmt::format(": {} here, {} there", here.dump(), there.dump());
}

Result<RunWriter> RunWriter::Open(const std::filesystem::path& dir, const Json& manifest) {
  std::error_code ignored;
  if (std::filesystem::exists(dir / kManifest, ignored)) {
    NIBBLE_RETURN_IF_ERROR(CheckSameRun(dir, manifest));
  } else {
    NIBBLE_RETURN_IF_ERROR(CreateRun(dir, manifest));
  }
  const std::filesystem::path path = dir / kRecords;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return Fail("{}: {}", path.string(), std::strerror(errno));
  RunWriter writer(dir, fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return Fail("{}: another process writes this run", path.string());
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  size_t n_whole_bytes = 0;
  NIBBLE_ASSIGN_OR_RETURN(writer.records_, ParseRecords(text, path.string(), &n_whole_bytes));
  if (::ftruncate(fd, static_cast<off_t>(n_whole_bytes)) != 0) {
    return Fail("{}: {}", path.string(), std::strerror(errno));
  }
  return writer;
}

RunWriter::RunWriter(RunWriter&& other) noexcept
    : dir_(std::move(other.dir_)),
      fd_(std::exchange(other.fd_, -1)),
      records_(std::move(other.records_)) {}

RunWriter::~RunWriter() {
  if (fd_ >= 0) ::close(fd_);
}

Status RunWriter::Append(const Json& record) {
  const std::string line = record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  // In one call, so that a line is whole or has no end.
  const ssize_t n_written = ::write(fd_, line.data(), line.size());
  if (n_written != static_cast<ssize_t>(line.size())) {
    return Fail("{}: {}", (dir_ / kRecords).string(),
                n_written < 0 ? std::strerror(errno) : "not all was written");
  }
  return {};
}

Status RunWriter::WriteSummary(const Json& summary) {
  return WriteFile(dir_ / kSummary, summary.dump(2) + "\n");
}

Result<Run> ReadRun(const std::filesystem::path& dir) {
  Run run;
  NIBBLE_ASSIGN_OR_RETURN(run.manifest, ReadJsonFile(dir / kManifest));
  std::error_code ignored;
  if (std::filesystem::exists(dir / kRecords, ignored)) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(dir / kRecords));
    size_t n_whole_bytes = 0;
    NIBBLE_ASSIGN_OR_RETURN(run.records,
                            ParseRecords(text, (dir / kRecords).string(), &n_whole_bytes));
  }
  if (std::filesystem::exists(dir / kSummary, ignored)) {
    NIBBLE_ASSIGN_OR_RETURN(run.summary, ReadJsonFile(dir / kSummary));
  }
  return run;
}

Result<SuiteResult> RunSuite(Target& target, const Suite& suite, int concurrency, RunWriter* writer,
                             const std::function<void(size_t n_done, size_t n)>& on_progress) {
  std::unordered_map<std::string, Json> record_of_id;
  if (writer != nullptr) {
    for (const Json& record : writer->records()) record_of_id[record.at("id")] = record;
  }
  std::vector<Query> queries;
  std::vector<const Item*> asked;
  for (const Item& item : suite.items) {
    if (record_of_id.contains(item.id)) continue;
    queries.push_back(item.query);
    asked.push_back(&item);
  }
  SuiteResult result;
  Status written;
  size_t n_done = record_of_id.size();
  target.AskAll(queries, concurrency, [&](size_t index, Result<Reply> reply) {
    const Item& item = *asked[index];
    if (!reply.has_value()) {
      result.faults.push_back(fmt::format("{}: {}", item.id, reply.error().message));
    } else {
      Json record = MakeRecord(suite, item, *reply);
      if (writer != nullptr) written = writer->Append(record);
      record_of_id[item.id] = std::move(record);
    }
    on_progress(++n_done, suite.items.size());
    return written.has_value();
  });
  NIBBLE_RETURN_IF_ERROR(std::move(written));
  for (const Item& item : suite.items) {
    const auto record = record_of_id.find(item.id);
    if (record != record_of_id.end()) result.records.push_back(std::move(record->second));
  }
  return result;
}

}  // namespace nibble::measure
