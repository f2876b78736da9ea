#include "repack/gguf_stream.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/peak_memory.h"
#include "base/sha256.h"
#include "base/thread_pool.h"
#include "gemma/gguf.h"
#include "repack/gguf_tensors.h"
#include "repack/output_file.h"
#include "repack/read_ahead.h"
#include "repack/resume.h"
#include "repack/slice_budget.h"

namespace nibble::repack {
namespace {

// Beside what has been in memory before the first slice: threads, manifests, the report as JSON.
constexpr uint64_t kReserveBytes = uint64_t{16} << 20;
// How much work a killed run may lose.
constexpr uint64_t kBytesBetweenNotes = uint64_t{64} << 20;  // of output

// Rows of one tensor; of the rope factors, all there is.
struct GgufSlice {
  size_t tensor_idx = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  std::span<const std::byte> source;
  uint64_t output_bytes = 0;
  uint64_t padding_bytes = 0;  // after the tensor's last row
};

class GgufStream {
 public:
  GgufStream(const checkpoint::GgufLayout& layout, const gemma::Config& config,
             uint64_t slice_bytes, const ProgressFn& progress, PiecePool* pieces, OutputFile* file,
             GgufReport* report)
      : layout_(layout),
        config_(config),
        slice_bytes_(slice_bytes),
        progress_(progress),
        pieces_(*pieces),
        file_(*file),
        report_(*report),
        pool_(report->options.n_threads) {}

  Status Write() {
    NIBBLE_RETURN_IF_ERROR(TakeOver());
    const std::vector<GgufSlice> slices = SlicesLeft();
    ReadAhead reading(slices);
    uint64_t noted_bytes = file_.position_bytes();
    for (size_t i = 0; i < slices.size(); ++i) {
      NIBBLE_RETURN_IF_ERROR(reading.WaitFor(i));
      NIBBLE_RETURN_IF_ERROR(WriteSlice(slices[i]));
      Advance(slices[i].source.size());
      const bool is_last = i + 1 == slices.size();
      if (!is_last && file_.position_bytes() - noted_bytes < kBytesBetweenNotes) continue;
      NIBBLE_RETURN_IF_ERROR(file_.Note(Counts()));
      noted_bytes = file_.position_bytes();
    }
    for (const GgufTensorReport& tensor : report_.tensors) report_.totals.Merge(tensor.counts);
    NIBBLE_ASSIGN_OR_RETURN(const WrittenFile written, file_.Commit());
    report_.sha256 = written.sha256;
    return {};
  }

 private:
  // What the interrupted run had counted, in the tensors as far as they are written.
  Status TakeOver() {
    if (file_.note().is_null()) return {};
    std::vector<PackCounts> counts(report_.tensors.size());
    NIBBLE_RETURN_IF_ERROR(CountsFromJson(file_.note(), counts));
    for (size_t i = 0; i < counts.size(); ++i) report_.tensors[i].counts = counts[i].grid;
    report_.taken_over_bytes = file_.position_bytes();
    return {};
  }

  Json Counts() const {
    std::vector<PackCounts> counts;
    counts.reserve(report_.tensors.size());
    for (const GgufTensorReport& tensor : report_.tensors) {
      counts.push_back({.grid = tensor.counts, .rounding = {}});
    }
    return CountsToJson(counts);
  }

  // Notes are made between slices, so what is written ends with a row, or with padding.
  std::vector<GgufSlice> SlicesLeft() {
    std::vector<GgufSlice> slices;
    uint64_t position_bytes = layout_.header.size();
    for (size_t i = 0; i < report_.tensors.size(); ++i) {
      const GgufTensorReport& tensor = report_.tensors[i];
      const uint64_t size_bytes = tensor.output.tensor.size_bytes;
      const uint64_t padding_bytes = layout_.PaddingAfter(size_bytes);
      const int64_t n_rows = tensor.output.source == nullptr ? 1 : GgufRows(tensor.output);
      const uint64_t row_bytes = size_bytes / static_cast<uint64_t>(n_rows);
      const uint64_t written_bytes =
          file_.position_bytes() - std::min(file_.position_bytes(), position_bytes);
      total_bytes_ += tensor.source_bytes;
      AddSlices(i, std::min(n_rows, static_cast<int64_t>(written_bytes / row_bytes)), n_rows,
                row_bytes, &slices);
      if (!slices.empty() && slices.back().tensor_idx == i) {
        slices.back().padding_bytes = padding_bytes;
      }
      position_bytes += size_bytes + padding_bytes;
    }
    return slices;
  }

  void AddSlices(size_t tensor_idx, int64_t row, int64_t n_rows, uint64_t row_bytes,
                 std::vector<GgufSlice>* slices) {
    const GgufTensorReport& tensor = report_.tensors[tensor_idx];
    const uint64_t source_row_bytes = tensor.source_bytes / static_cast<uint64_t>(n_rows);
    done_bytes_ += static_cast<uint64_t>(row) * source_row_bytes;
    const auto slice_rows = static_cast<int64_t>(
        std::max<uint64_t>(1, slice_bytes_ / std::max(source_row_bytes, row_bytes)));
    for (; row < n_rows; row += slice_rows) {
      const int64_t row_end = std::min(row + slice_rows, n_rows);
      const auto rows = static_cast<uint64_t>(row_end - row);
      GgufSlice slice{.tensor_idx = tensor_idx,
                      .row_begin = row,
                      .row_end = row_end,
                      .source = {},
                      .output_bytes = rows * row_bytes};
      if (tensor.output.source != nullptr) {
        slice.source = tensor.output.source->bytes.subspan(
            static_cast<uint64_t>(row) * source_row_bytes, rows * source_row_bytes);
      }
      slices->push_back(slice);
    }
  }

  Status WriteSlice(const GgufSlice& slice) {
    GgufTensorReport& tensor = report_.tensors[slice.tensor_idx];
    const uint64_t n_bytes = slice.output_bytes + slice.padding_bytes;
    if (tensor.output.source == nullptr) return WriteRopeFactors(n_bytes);
    const size_t scratch_bytes = GgufScratchBytes(tensor.output, slice.row_end - slice.row_begin);
    const PiecePool::Buffer buffer = pieces_.Take(n_bytes + scratch_bytes);
    const auto bytes = std::span(*buffer).first(n_bytes);
    std::ranges::fill(bytes.last(slice.padding_bytes), std::byte{0});
    const Status encoded =
        EncodeGgufRows(tensor.output, slice.row_begin, slice.row_end, report_.options,
                       bytes.first(slice.output_bytes),
                       std::span(*buffer).subspan(n_bytes, scratch_bytes), pool_, &tensor.counts);
    ReleasePages(slice.source);
    if (!encoded.has_value()) {
      file_.Discard();
      return encoded;
    }
    return file_.WriteNext({bytes, buffer});
  }

  Status WriteRopeFactors(uint64_t n_bytes) {
    const std::vector<float> factors = gemma::GgufRopeFactors(config_);
    const auto bytes = std::as_bytes(std::span(factors));
    const PiecePool::Buffer buffer = pieces_.Take(n_bytes);
    const auto piece = std::span(*buffer).first(n_bytes);
    std::ranges::fill(std::ranges::copy(bytes, piece.begin()).out, piece.end(), std::byte{0});
    return file_.WriteNext({piece, buffer});
  }

  void Advance(uint64_t n_bytes) {
    done_bytes_ += n_bytes;
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  const checkpoint::GgufLayout& layout_;
  const gemma::Config& config_;
  uint64_t slice_bytes_;
  const ProgressFn& progress_;
  PiecePool& pieces_;
  OutputFile& file_;
  GgufReport& report_;
  ThreadPool pool_;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

Json MadeOf(const Json& made, const LaidOutGguf& file) {
  Json json = made;
  // Types of the tables, tokenizer and all other metadata.
  json["header_sha256"] = Sha256Hex(std::as_bytes(std::span(file.layout.header)));
  return json;
}

uint64_t SourceBytes(const GgufReport& report) {
  uint64_t n_bytes = 0;
  for (const GgufTensorReport& tensor : report.tensors) n_bytes += tensor.source_bytes;
  return n_bytes;
}

// One after the other, as one run.
class GgufFilesWriter {
 public:
  GgufFilesWriter(const Json& made, const gemma::Config& config, uint64_t slice_bytes,
                  LaidOutGguf* towers, LaidOutGguf* text)
      : made_(made), config_(config), slice_bytes_(slice_bytes), towers_(towers), text_(*text) {}

  // The text model's manifest stands for the run: there before the towers are begun, and gone when
  // all is whole.
  Status Write(const ProgressFn& progress) {
    uint64_t n_bytes = text_.report.file_bytes;
    std::error_code ignored;
    if (towers_ != nullptr && !std::filesystem::exists(towers_->path, ignored)) {
      n_bytes += towers_->report.file_bytes;
    }
    NIBBLE_ASSIGN_OR_RETURN(OutputFile file,
                            OutputFile::Open(text_.path, MadeOf(made_, text_), text_.layout.header,
                                             n_bytes, text_.report.options.resume));
    Status written = towers_ == nullptr ? Status() : WriteTowers(progress, &file);
    if (written.has_value()) written = WriteText(progress, &file);
    if (written.has_value() || !file.is_resumable()) return written;
    return Fail("{}; --resume goes on from what is finished", written.error().message);
  }

 private:
  Status WriteTowers(const ProgressFn& progress, OutputFile* text_file) {
    if (text_file->was_begun() && OutputFile::IsFinished(towers_->path)) {
      NIBBLE_ASSIGN_OR_RETURN(towers_->report.sha256, Sha256HexOfFile(towers_->path));
      towers_->report.taken_over_bytes = towers_->report.file_bytes;
      return {};
    }
    Result<OutputFile> file =
        OutputFile::Open(towers_->path, MadeOf(made_, *towers_), towers_->layout.header,
                         towers_->report.file_bytes, towers_->report.options.resume);
    if (!file.has_value()) {
      if (!text_file->was_begun()) text_file->Discard();
      return std::unexpected(file.error());
    }
    const uint64_t text_bytes = SourceBytes(text_.report);
    const ProgressFn in_all = [&](uint64_t done, uint64_t total) {
      if (progress) progress(done, total + text_bytes);
    };
    return GgufStream(towers_->layout, config_, slice_bytes_, in_all, &pieces_, &*file,
                      &towers_->report)
        .Write();
  }

  Status WriteText(const ProgressFn& progress, OutputFile* file) {
    const uint64_t tower_bytes = towers_ == nullptr ? 0 : SourceBytes(towers_->report);
    const ProgressFn in_all = [&](uint64_t done, uint64_t total) {
      if (progress) progress(done + tower_bytes, total + tower_bytes);
    };
    Status written =
        GgufStream(text_.layout, config_, slice_bytes_, in_all, &pieces_, file, &text_.report)
            .Write();
    if (!written.has_value() && !file->is_resumable() && towers_ != nullptr) {
      std::error_code ignored;
      std::filesystem::remove(towers_->path, ignored);  // the input is at fault
    }
    return written;
  }

  const Json& made_;
  const gemma::Config& config_;
  uint64_t slice_bytes_;
  LaidOutGguf* towers_;
  LaidOutGguf& text_;
  PiecePool pieces_{kPieces};  // outlives the files, which may hold some
};

}  // namespace

Status WriteGguf(const Json& made, const gemma::Config& config, const ProgressFn& progress,
                 LaidOutGguf* towers, LaidOutGguf* text) {
  // Tokenizer and headers are what is large here, and all have been in memory by now.
  const size_t n_tensors =
      text->report.tensors.size() + (towers == nullptr ? 0 : towers->report.tensors.size());
  const uint64_t least_bytes = LeastMemoryBytes(PeakResidentBytes() + kReserveBytes, n_tensors);
  const uint64_t max_memory_bytes = text->report.options.max_memory_bytes;
  NIBBLE_RETURN_IF_ERROR(CheckMemoryLimit(max_memory_bytes, least_bytes));
  return GgufFilesWriter(made, config, SliceBytes(max_memory_bytes, least_bytes), towers, text)
      .Write(progress);
}

}  // namespace nibble::repack
