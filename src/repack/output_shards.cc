#include "repack/output_shards.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "repack/pack_slice.h"
#include "repack/read_ahead.h"
#include "repack/resume.h"
#include "repack/shard_writer.h"
#include "repack/slice_budget.h"

namespace nibble::repack {
namespace {

// What stays the same whatever is packed (program, libraries, tokenizer.json while it is copied):
// with what slice_budget.h adds for tensors it is more than was measured, 44 MB in all for a cut of
// E2B with small slices, 163 MB for the whole of 26B-A4B with the largest.
constexpr uint64_t kBaseBytes = uint64_t{80} << 20;
constexpr uint64_t kMaxCopyBytes = uint64_t{8} << 20;

bool IsWritten(const PlannedTensor& tensor) {
  return tensor.action == Action::kPack || tensor.action == Action::kCopy;
}

// Of one tensor: rows [row_begin, row_end) to pack, or bytes to copy.
struct Slice {
  size_t tensor_idx = 0;
  uint64_t row_begin = 0;
  uint64_t row_end = 0;
  std::span<const std::byte> source;
};

class ShardStream {
 public:
  ShardStream(const Plan& plan, const Options& options, const ProgressFn& progress,
              OutputDirectory* directory, RepackReport* report)
      : plan_(plan),
        options_(options),
        progress_(progress),
        directory_(*directory),
        report_(*report),
        slice_bytes_(SliceBytes(options.max_memory_bytes, LeastMemoryBytes(plan))),
        pool_(options.n_threads),
        pieces_(kPieces) {
    for (const PlannedTensor& tensor : plan.tensors) {
      if (IsWritten(tensor)) total_bytes_ += tensor.source_bytes();
    }
  }

  Status Write() {
    const std::vector<size_t> ends =
        SplitShards(plan_, options_.scale_dtype, options_.max_shard_bytes);
    std::vector<std::pair<std::string, std::string>> name_to_shard;
    size_t begin = 0;
    for (size_t shard_idx = 0; shard_idx < ends.size(); ++shard_idx) {
      const std::string shard = ends.size() == 1 ? "model.safetensors"
                                                 : fmt::format("model-{:05}-of-{:05}.safetensors",
                                                               shard_idx + 1, ends.size());
      NIBBLE_RETURN_IF_ERROR(WriteOrTakeOver(shard, begin, ends[shard_idx]));
      for (; begin < ends[shard_idx]; ++begin) {
        for (const auto& info : plan_.tensors[begin].OutputTensors(options_.scale_dtype)) {
          name_to_shard.emplace_back(info.name, shard);
        }
        report_.totals.Merge(report_.tensors[begin].counts);
      }
      report_.shards.push_back(shard);
    }
    if (ends.size() == 1) return {};
    return directory_.WriteText("model.safetensors.index.json",
                                checkpoint::IndexText(name_to_shard, report_.output_bytes()));
  }

 private:
  Status WriteOrTakeOver(const std::string& shard, size_t begin, size_t end) {
    std::vector<PackCounts> counts(end - begin);
    if (const Json note = directory_.FindFinished(shard); !note.is_null()) {
      const Status read = CountsFromJson(note, counts);
      if (!read.has_value())
        return Fail("{}: {}", directory_.path().string(), read.error().message);
      for (size_t i = begin; i < end; ++i) {
        report_.tensors[i].counts = counts[i - begin];
        if (IsWritten(plan_.tensors[i])) Advance(plan_.tensors[i].source_bytes());
      }
      ++report_.n_shards_taken_over;
      return {};
    }
    NIBBLE_ASSIGN_OR_RETURN(const WrittenFile file, WriteShard(shard, begin, end));
    for (size_t i = begin; i < end; ++i) counts[i - begin] = report_.tensors[i].counts;
    return directory_.AddFinished(shard, file, CountsToJson(counts));
  }

  Result<WrittenFile> WriteShard(const std::string& shard, size_t begin, size_t end) {
    std::vector<checkpoint::TensorInfo> declared;
    for (size_t i = begin; i < end; ++i) {
      std::ranges::move(plan_.tensors[i].OutputTensors(options_.scale_dtype),
                        std::back_inserter(declared));
    }
    NIBBLE_ASSIGN_OR_RETURN(const std::string header, checkpoint::SafetensorsHeaderBytes(
                                                          declared, {{"format", "pt"}}, shard));
    NIBBLE_ASSIGN_OR_RETURN(const auto file,
                            ShardWriter::Create(directory_.path() / shard, header));
    const std::vector<Slice> slices = Slices(begin, end);
    ReadAhead reading(slices);
    for (size_t i = 0; i < slices.size(); ++i) {
      NIBBLE_RETURN_IF_ERROR(reading.WaitFor(i));
      NIBBLE_RETURN_IF_ERROR(WriteSlice(slices[i], file.get()));
      Advance(slices[i].source.size());
    }
    return file->Commit();
  }

  std::vector<Slice> Slices(size_t begin, size_t end) const {
    std::vector<Slice> slices;
    for (size_t i = begin; i < end; ++i) {
      const PlannedTensor& tensor = plan_.tensors[i];
      if (tensor.action == Action::kCopy) {
        const uint64_t piece_bytes = std::min(slice_bytes_, kMaxCopyBytes);
        for (auto left = tensor.source->bytes; !left.empty();) {
          const auto source = left.first(std::min<uint64_t>(left.size(), piece_bytes));
          slices.push_back({.tensor_idx = i, .source = source});
          left = left.subspan(source.size());
        }
      } else if (tensor.action == Action::kPack) {
        const auto n_rows = static_cast<uint64_t>(tensor.n_rows);
        const uint64_t row_bytes = tensor.source_bytes() / n_rows;
        const uint64_t slice_rows = std::max<uint64_t>(1, slice_bytes_ / row_bytes);
        const auto rows = tensor.source->bytes.subspan(
            static_cast<uint64_t>(tensor.row_begin) * row_bytes, tensor.source_bytes());
        for (uint64_t row = 0; row < n_rows; row += slice_rows) {
          const uint64_t row_end = std::min(row + slice_rows, n_rows);
          slices.push_back(
              {i, row, row_end, rows.subspan(row * row_bytes, (row_end - row) * row_bytes)});
        }
      }
    }
    return slices;
  }

  Status WriteSlice(const Slice& slice, ShardWriter* file) {
    const PlannedTensor& tensor = plan_.tensors[slice.tensor_idx];
    if (tensor.action == Action::kCopy) return file->WriteNext(pieces_.TakeFor(slice.source));
    // The tensor's codes, then its scales, then what follows: slices fill the first two in step.
    const auto outputs = tensor.OutputTensors(options_.scale_dtype);
    const auto n_rows = static_cast<uint64_t>(tensor.n_rows);
    const uint64_t codes_row_bytes = outputs[0].size_bytes / n_rows;
    const uint64_t scales_row_bytes = outputs[1].size_bytes / n_rows;
    const uint64_t slice_rows = slice.row_end - slice.row_begin;
    const PiecePool::Buffer buffer =
        pieces_.Take(slice_rows * (codes_row_bytes + scales_row_bytes));
    const auto codes = std::span(*buffer).first(slice_rows * codes_row_bytes);
    const auto scales = std::span(*buffer).subspan(codes.size(), slice_rows * scales_row_bytes);
    const Status packed = PackSlice(tensor, static_cast<int64_t>(slice.row_begin),
                                    static_cast<int64_t>(slice.row_end), options_, codes, scales,
                                    pool_, &report_.tensors[slice.tensor_idx].counts);
    ReleasePages(slice.source);
    if (!packed.has_value()) {
      directory_.Discard();
      return packed;
    }
    const uint64_t rows_left = n_rows - slice.row_begin;
    const uint64_t scales_begin = file->position_bytes() + rows_left * codes_row_bytes;
    NIBBLE_RETURN_IF_ERROR(
        file->WriteAhead(scales_begin + slice.row_begin * scales_row_bytes, {scales, buffer}));
    NIBBLE_RETURN_IF_ERROR(file->WriteNext({codes, buffer}));
    if (slice.row_end < n_rows) return {};
    NIBBLE_RETURN_IF_ERROR(file->PassWritten(outputs[1].size_bytes));
    const auto tail = std::make_shared<const std::vector<std::byte>>(PackTail(tensor));
    return file->WriteNext({*tail, tail});
  }

  void Advance(uint64_t n_bytes) {
    done_bytes_ += n_bytes;
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  const Plan& plan_;
  const Options& options_;
  const ProgressFn& progress_;
  OutputDirectory& directory_;
  RepackReport& report_;
  uint64_t slice_bytes_;
  ThreadPool pool_;
  PiecePool pieces_;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace

uint64_t LeastMemoryBytes(const Plan& plan) {
  return LeastMemoryBytes(kBaseBytes, plan.tensors.size());
}

Status WriteShards(const Plan& plan, const Options& options, const ProgressFn& progress,
                   OutputDirectory* directory, RepackReport* report) {
  return ShardStream(plan, options, progress, directory, report).Write();
}

}  // namespace nibble::repack
