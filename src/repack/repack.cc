#include "repack/repack.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "base/atomic_file.h"
#include "base/check.h"
#include "base/instruction_set.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "repack/output_config.h"
#include "repack/pack_slice.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;

// Source bytes between two writes: large enough to keep every core busy, small enough to keep
// memory flat.
constexpr uint64_t kSliceBytes = uint64_t{32} << 20;

constexpr std::array kTextFiles = {"tokenizer.json", "tokenizer_config.json",
                                   "special_tokens_map.json", "chat_template.jinja",
                                   "generation_config.json"};
constexpr std::array kTowerFiles = {"preprocessor_config.json", "processor_config.json"};

// OUT.partial: gone again unless Commit() succeeded.
class PartialDirectory {
 public:
  static Result<PartialDirectory> Create(const fs::path& out) {
    std::error_code error;
    const bool is_free = !fs::exists(fs::symlink_status(out, error)) ||
                         (fs::is_directory(out, error) && fs::is_empty(out, error));
    if (!is_free)
      return Fail("{}: exists already; expected a new or an empty directory", out.string());
    PartialDirectory directory(out);
    fs::remove_all(directory.path_, error);  // of a run that was killed
    if (!error) fs::create_directories(directory.path_, error);
    if (error) return Fail("{}: cannot create: {}", directory.path_.string(), error.message());
    return directory;
  }

  PartialDirectory(PartialDirectory&& other) noexcept
      : out_(std::move(other.out_)), path_(std::exchange(other.path_, {})) {}
  PartialDirectory& operator=(PartialDirectory&&) = delete;
  ~PartialDirectory() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }

  const fs::path& path() const { return path_; }

  Status Commit() {
    if (::rename(path_.c_str(), out_.c_str()) != 0) {
      return Fail("{}: cannot rename to {}: {}", path_.string(), out_.string(),
                  std::strerror(errno));
    }
    path_.clear();
    const fs::path parent = out_.has_parent_path() ? out_.parent_path() : ".";
    const int fd = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return Fail("{}: cannot open: {}", parent.string(), std::strerror(errno));
    const int synced = ::fsync(fd);
    ::close(fd);
    if (synced != 0) return Fail("{}: cannot sync: {}", parent.string(), std::strerror(errno));
    return {};
  }

 private:
  explicit PartialDirectory(fs::path out)
      : out_(std::move(out)), path_(out_.string() + ".partial") {}

  fs::path out_;
  fs::path path_;
};

// Writes the plan's tensors, shard by shard, and fills the report.
class Writer {
 public:
  Writer(const Plan& plan, const Options& options, const ProgressFn& progress, RepackReport* report)
      : plan_(plan),
        options_(options),
        progress_(progress),
        report_(report),
        pool_(options.n_threads) {
    for (const PlannedTensor& tensor : plan.tensors) {
      if (IsWritten(tensor)) total_bytes_ += tensor.source_bytes();
    }
  }

  Status WriteAll(const fs::path& dir) {
    const std::vector<size_t> ends =
        SplitShards(plan_, options_.scale_dtype, options_.max_shard_bytes);
    std::vector<std::pair<std::string, std::string>> name_to_shard;
    size_t begin = 0;
    for (size_t shard_idx = 0; shard_idx < ends.size(); ++shard_idx) {
      const std::string shard = ends.size() == 1 ? "model.safetensors"
                                                 : fmt::format("model-{:05}-of-{:05}.safetensors",
                                                               shard_idx + 1, ends.size());
      NIBBLE_RETURN_IF_ERROR(WriteShard(dir / shard, begin, ends[shard_idx]));
      for (; begin < ends[shard_idx]; ++begin) {
        for (const auto& info : plan_.tensors[begin].OutputTensors(options_.scale_dtype)) {
          name_to_shard.emplace_back(info.name, shard);
        }
      }
      report_->shards.push_back(shard);
    }
    if (ends.size() == 1) return {};
    return checkpoint::WriteIndex(dir / "model.safetensors.index.json", name_to_shard,
                                  report_->output_bytes());
  }

 private:
  static bool IsWritten(const PlannedTensor& tensor) {
    return tensor.action == Action::kPack || tensor.action == Action::kCopy;
  }

  Status WriteShard(const fs::path& path, size_t begin, size_t end) {
    std::vector<checkpoint::TensorInfo> declared;
    for (size_t i = begin; i < end; ++i) {
      std::ranges::move(plan_.tensors[i].OutputTensors(options_.scale_dtype),
                        std::back_inserter(declared));
    }
    NIBBLE_ASSIGN_OR_RETURN(
        auto file, checkpoint::SafetensorsWriter::Create(path, declared, {{"format", "pt"}}));
    for (size_t i = begin; i < end; ++i) {
      const PlannedTensor& tensor = plan_.tensors[i];
      if (tensor.action == Action::kPack) {
        NIBBLE_RETURN_IF_ERROR(Pack(tensor, &report_->tensors[i].counts, &file));
      } else if (tensor.action == Action::kCopy) {
        NIBBLE_RETURN_IF_ERROR(Copy(tensor, &file));
      }
    }
    return file.Commit();
  }

  Status Copy(const PlannedTensor& tensor, checkpoint::SafetensorsWriter* file) {
    for (auto left = tensor.source->bytes; !left.empty();) {
      const auto slice = left.first(std::min(left.size(), size_t{kSliceBytes}));
      NIBBLE_RETURN_IF_ERROR(file->Append(slice));
      Advance(slice.size());
      left = left.subspan(slice.size());
    }
    return {};
  }

  Status Pack(const PlannedTensor& tensor, PackCounts* counts,
              checkpoint::SafetensorsWriter* file) {
    const auto outputs = tensor.OutputTensors(options_.scale_dtype);
    const auto n_rows = static_cast<uint64_t>(tensor.n_rows);
    const uint64_t row_bytes = tensor.source_bytes() / n_rows;
    const uint64_t codes_row_bytes = outputs[0].size_bytes / n_rows;
    const uint64_t scales_row_bytes = outputs[1].size_bytes / n_rows;
    const uint64_t slice_rows = std::max<uint64_t>(1, kSliceBytes / row_bytes);
    std::vector<std::byte> codes;
    std::vector<std::byte> scales(outputs[1].size_bytes);
    for (uint64_t row = 0; row < n_rows; row += slice_rows) {
      const uint64_t row_end = std::min(row + slice_rows, n_rows);
      codes.resize((row_end - row) * codes_row_bytes);
      const auto slice_scales =
          std::span(scales).subspan(row * scales_row_bytes, (row_end - row) * scales_row_bytes);
      NIBBLE_RETURN_IF_ERROR(PackSlice(tensor, static_cast<int64_t>(row),
                                       static_cast<int64_t>(row_end), options_, codes, slice_scales,
                                       pool_, counts));
      NIBBLE_RETURN_IF_ERROR(file->Append(codes));
      Advance((row_end - row) * row_bytes);
    }
    report_->totals.Merge(*counts);
    NIBBLE_RETURN_IF_ERROR(file->Append(scales));
    return file->Append(PackTail(tensor));
  }

  void Advance(uint64_t n_bytes) {
    done_bytes_ += n_bytes;
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  const Plan& plan_;
  const Options& options_;
  const ProgressFn& progress_;
  RepackReport* report_;
  ThreadPool pool_;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

RepackReport BeginReport(const Plan& plan, const Options& options, const std::string& config_text) {
  RepackReport report;
  report.options = options;
  report.unpacked_linears = plan.unpacked_linears;
  report.source_config_sha256 = Sha256Hex(std::as_bytes(std::span(config_text)));
  for (const PlannedTensor& tensor : plan.tensors) {
    TensorReport entry{.source = tensor.source->info.name,
                       .action = tensor.action,
                       .part = tensor.part,
                       .output = tensor.output,
                       .encoding = tensor.encoding,
                       .shape = tensor.source->info.shape,
                       .row_begin = tensor.row_begin,
                       .source_bytes = tensor.source_bytes(),
                       .counts = {}};
    for (const auto& info : tensor.OutputTensors(options.scale_dtype)) {
      entry.output_bytes += info.size_bytes;
    }
    report.tensors.push_back(std::move(entry));
  }
  return report;
}

Status CopyFiles(const fs::path& source, const fs::path& dir, bool keep_towers,
                 RepackReport* report) {
  std::vector<const char*> names(kTextFiles.begin(), kTextFiles.end());
  if (keep_towers) names.insert(names.end(), kTowerFiles.begin(), kTowerFiles.end());
  for (const char* name : names) {
    std::error_code error;
    if (!fs::exists(source / name, error)) continue;
    NIBBLE_ASSIGN_OR_RETURN(const std::string content, ReadTextFile(source / name));
    NIBBLE_RETURN_IF_ERROR(WriteFile(dir / name, content));
    report->copied_files.emplace_back(name);
  }
  return {};
}

}  // namespace

Result<RepackReport> Repack(const fs::path& source, const fs::path& out, const Options& options,
                            const ProgressFn& progress) {
  NIBBLE_RETURN_IF_ERROR(ChosenInstructionSet());
  const fs::path target = out.has_filename() ? out : out.parent_path();  // "OUT/" is OUT
  NIBBLE_ASSIGN_OR_RETURN(const gemma::Config config, gemma::ReadConfig(source));
  NIBBLE_ASSIGN_OR_RETURN(const std::string config_text, ReadTextFile(source / "config.json"));
  NIBBLE_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(source));
  NIBBLE_ASSIGN_OR_RETURN(const Plan plan, MakePlan(checkpoint, config, options));
  RepackReport report = BeginReport(plan, options, config_text);
  if (options.dry_run) return report;

  NIBBLE_ASSIGN_OR_RETURN(PartialDirectory partial, PartialDirectory::Create(target));
  NIBBLE_RETURN_IF_ERROR(Writer(plan, options, progress, &report).WriteAll(partial.path()));
  NIBBLE_RETURN_IF_ERROR(WriteFile(partial.path() / "config.json",
                                   OutputConfig(config, plan, options).dump(2) + "\n"));
  NIBBLE_RETURN_IF_ERROR(CopyFiles(source, partial.path(), options.keep_towers, &report));
  NIBBLE_RETURN_IF_ERROR(
      WriteFile(partial.path() / "nibble-report.json", report.ToJson().dump(2) + "\n"));
  NIBBLE_RETURN_IF_ERROR(partial.Commit());
  return report;
}

}  // namespace nibble::repack
