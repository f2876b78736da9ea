#include "repack/verify.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/dtype.h"
#include "base/instruction_set.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "gemma/config.h"
#include "gemma/tensors.h"
#include "repack/verify_config.h"
#include "repack/verify_int8.h"

namespace nibble::repack {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Tensor;

// Rows of a source tensor, seen as [rows, K], that the output holds as one linear.
struct Piece {
  const Tensor* source = nullptr;
  std::string module;
  int64_t row_begin = 0;
  int64_t n_rows = 0;

  int64_t n_columns() const { return source->info.shape.back(); }
  std::span<const std::byte> bytes() const {
    const int64_t row_bytes = n_columns() * 2;
    return source->bytes.subspan(static_cast<size_t>(row_begin * row_bytes),
                                 static_cast<size_t>(n_rows * row_bytes));
  }
};

// The names that a source tensor may have in an output: text-only, multimodal, its own.
std::vector<std::string> Spellings(const std::string& name) {
  const std::optional<std::string> text_name = gemma::TextName(name);
  if (!text_name.has_value()) return {name};
  std::vector<std::string> spellings = {*text_name};
  constexpr std::string_view kModel = "model.";
  if (text_name->starts_with(kModel)) {
    spellings.push_back("model.language_model." + text_name->substr(kModel.size()));
  }
  return spellings;
}

// The linears that a tensor called `name` may be packed as: itself, or an expert bank's
// projections.
std::vector<Piece> Pieces(const Tensor& source, const std::string& name) {
  const std::vector<int64_t>& shape = source.info.shape;
  if (source.info.n_elements() == 0) return {};
  if (name.ends_with(kWeightSuffix) && shape.size() == 2) {
    return {{&source, name.substr(0, name.size() - kWeightSuffix.size()), 0, shape[0]}};
  }
  const size_t dot = name.rfind('.');
  if (shape.size() != 3 || dot == std::string::npos || !name.ends_with("_proj")) return {};
  std::vector<std::string> parts = {name.substr(dot + 1)};
  if (parts[0] == "gate_up_proj") parts = {"gate_proj", "up_proj"};  // the first half, the second
  std::vector<Piece> pieces;
  const int64_t n_rows = shape[1] / std::ssize(parts);
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    for (const std::string& part : parts) {
      pieces.push_back({&source, fmt::format("{}.{}.{}", name.substr(0, dot), expert, part),
                        std::ssize(pieces) * n_rows, n_rows});
    }
  }
  return pieces;
}

bool IsSame(const Tensor& a, const Tensor& b) {
  return a.bytes.size() == b.bytes.size() && !FirstDifference(a.bytes, b.bytes).has_value();
}

class Verifier {
 public:
  Verifier(const Checkpoint& source, const Checkpoint& output, const gemma::Config& source_config,
           bool is_text_only, int n_threads, const ProgressFn& progress)
      : source_(source),
        output_(output),
        source_config_(source_config),
        is_text_only_(is_text_only),
        pool_(n_threads),
        progress_(progress) {}

  VerifyReport Run() {
    for (const Tensor& tensor : source_.tensors()) {
      VerifiedTensor found = Check(tensor);
      if (found.counts.n_groups > 0) report_.int4.Merge(found.measured);
      if (found.counts.n_groups == 0) report_.int8.Merge(found.measured);
      report_.totals.Merge(found.counts);
      report_.tensors.push_back(std::move(found));
    }
    CheckHeadOfTiedModel();
    for (const Tensor& tensor : output_.tensors()) {
      if (!seen_.contains(tensor.info.name)) {
        Fault("{}: tensor {} comes from no source tensor", tensor.shard,
              QuoteForMessage(tensor.info.name));
      }
    }
    return std::move(report_);
  }

 private:
  template <typename... Args>
  void Fault(fmt::format_string<Args...> format, Args&&... args) {
    report_.faults.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  const Tensor* FindOutput(const std::string& name) {
    const Tensor* tensor = output_.Find(name);
    if (tensor != nullptr) seen_.insert(name);
    return tensor;
  }

  bool IsInt4(const std::string& module) const {
    return output_.Find(module + ".weight_packed") != nullptr;
  }
  bool IsInt8(const std::string& module) const {
    const Tensor* weight = output_.Find(module + ".weight");
    return weight != nullptr && weight->info.dtype == DType::kI8;
  }

  VerifiedTensor Check(const Tensor& tensor) {
    const uint64_t done_before = done_bytes_;
    VerifiedTensor result{.source = tensor.info.name, .found_as = {}, .counts = {}, .measured = {}};
    const std::vector<std::string> spellings = Spellings(tensor.info.name);
    for (const std::string& name : spellings) {
      const std::vector<Piece> pieces = Pieces(tensor, name);
      const auto is_packed = [this](const Piece& piece) {
        return IsInt4(piece.module) || IsInt8(piece.module);
      };
      if (std::ranges::any_of(pieces, is_packed)) {
        for (const Piece& piece : pieces) CheckPiece(piece, &result);
      } else if (const Tensor* copy = FindOutput(name); copy != nullptr) {
        result.found_as = "copied";
        CheckCopy(tensor, *copy);
      }
      if (!result.found_as.empty()) break;
    }
    if (result.found_as.empty()) result.found_as = WhyAbsent(tensor);
    if (result.found_as == "missing") {
      Fault("{}: tensor {} is missing", output_.path().string(),
            is_text_only_ ? spellings.front() : spellings.back());
    }
    Advance(tensor.info.size_bytes - (done_bytes_ - done_before));
    return result;
  }

  std::string WhyAbsent(const Tensor& tensor) const {
    const std::optional<std::string> text_name = gemma::TextName(tensor.info.name);
    if (!text_name.has_value()) {
      const bool is_tower = gemma::PartOf(tensor.info.name).has_value();
      return is_text_only_ && is_tower ? "dropped: tower" : "missing";
    }
    if (gemma::IsIgnoredLeftover(source_config_, *text_name)) {
      return "dropped: K/V of a KV-shared layer";
    }
    if (*text_name == "lm_head.weight" && source_config_.tie_word_embeddings) {
      const Tensor* table = SourceTable();
      if (table != nullptr && IsSame(*table, tensor)) {
        return "dropped: head identical to embed_tokens";
      }
    }
    return "missing";
  }

  const Tensor* SourceTable() const {
    const auto is_table = [](const Tensor& tensor) {
      return gemma::TextName(tensor.info.name) == "model.embed_tokens.weight";
    };
    const auto found = std::ranges::find_if(source_.tensors(), is_table);
    return found == source_.tensors().end() ? nullptr : &*found;
  }

  void CheckCopy(const Tensor& tensor, const Tensor& copy) {
    const std::string& name = copy.info.name;
    if (copy.info.dtype != tensor.info.dtype || copy.info.shape != tensor.info.shape) {
      return Fault("tensor {}: expected {} [{}], found {} [{}]", name, Name(tensor.info.dtype),
                   fmt::join(tensor.info.shape, ", "), Name(copy.info.dtype),
                   fmt::join(copy.info.shape, ", "));
    }
    const std::optional<size_t> at = FindDifference(tensor.bytes, copy.bytes);
    if (!at.has_value()) return;
    const int64_t element = static_cast<int64_t>(*at) / SizeBytes(tensor.info.dtype);
    const int64_t row_elements = tensor.info.shape.empty() ? 1 : tensor.info.shape.back();
    Fault("tensor {} row {} column {}: not the source's bytes", name, element / row_elements,
          element % row_elements);
  }

  // FirstDifference() on all threads.
  std::optional<size_t> FindDifference(std::span<const std::byte> a, std::span<const std::byte> b) {
    constexpr size_t kPartBytes = size_t{8} << 20;
    const auto n_parts = static_cast<int64_t>((a.size() + kPartBytes - 1) / kPartBytes);
    std::vector<std::optional<size_t>> found(static_cast<size_t>(n_parts));
    pool_.ParallelFor(n_parts, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const size_t first = i * kPartBytes;
        const size_t n_bytes = std::min(kPartBytes, a.size() - first);
        const auto at = FirstDifference(a.subspan(first, n_bytes), b.subspan(first, n_bytes));
        if (at.has_value()) found[i] = first + *at;
      }
    });
    const auto first = std::ranges::find_if(found, [](const auto& at) { return at.has_value(); });
    return first == found.end() ? std::nullopt : *first;
  }

  void CheckPiece(const Piece& piece, VerifiedTensor* result) {
    const bool is_int4 = IsInt4(piece.module);
    if (!is_int4 && !IsInt8(piece.module)) {
      return Fault("{}: tensor {}.weight is missing", output_.path().string(), piece.module);
    }
    result->found_as = is_int4 ? "packed" : "rounded to int8";
    if (piece.source->info.dtype != DType::kBF16) {
      return Fault("tensor {} is packed, but its source is {}", piece.module,
                   Name(piece.source->info.dtype));
    }
    if (is_int4) {
      CheckPackedPiece(piece, result);
      if (FindOutput(piece.module + ".weight") != nullptr) {
        Fault("tensor {}.weight stands in the output both packed and plain", piece.module);
      }
    } else {
      CheckInt8Piece(piece, result);
    }
  }

  // The piece's int4 tensors, if types and shapes are such that values can be read; else a fault.
  std::optional<Int4Matrix> OpenInt4(const Piece& piece) {
    const std::string& module = piece.module;
    const Tensor& codes = *FindOutput(module + ".weight_packed");
    const Tensor* scales = FindOutput(module + ".weight_scale");
    const Tensor* stored_shape = FindOutput(module + ".weight_shape");
    const int64_t n_columns = piece.n_columns();
    if (scales == nullptr || n_columns % kLevelGroup != 0) {
      Fault("tensor {}.weight_packed: {}", module,
            scales == nullptr ? "weight_scale is missing" : "rows are not whole groups");
      return std::nullopt;
    }
    const DType dtype = scales->info.dtype;
    const std::vector<int64_t>& found = scales->info.shape;
    const bool is_scale = dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32;
    const int64_t n_scales = found.size() == 2 ? std::max<int64_t>(found[1], 1) : 1;
    const bool fits = codes.info.dtype == DType::kI32 &&
                      codes.info.shape == std::vector{piece.n_rows, n_columns / 8} && is_scale &&
                      found == std::vector{piece.n_rows, n_scales} &&
                      n_columns % (n_scales * kLevelGroup) == 0;
    const std::vector<int64_t> shape = {piece.n_rows, n_columns};
    const bool has_shape = stored_shape != nullptr && stored_shape->info.dtype == DType::kI64 &&
                           std::ranges::equal(stored_shape->bytes, std::as_bytes(std::span(shape)));
    if (!fits || !has_shape) {
      Fault(
          "tensor {}: expected codes I32 [{}, {}], scales F16 or BF16 [{}, {}] and the shape {}, "
          "{}; found {} [{}] and {} [{}]{}",
          module, piece.n_rows, n_columns / 8, piece.n_rows, n_columns / kLevelGroup, piece.n_rows,
          n_columns, Name(codes.info.dtype), fmt::join(codes.info.shape, ", "), Name(dtype),
          fmt::join(found, ", "),
          has_shape                 ? ""
          : stored_shape == nullptr ? " without a shape"
                                    : " with another shape");
    }
    if (!fits || output_.Find(module + ".weight_zero_point") != nullptr) return std::nullopt;
    return Int4Matrix{.source = piece.bytes(),
                      .codes = codes.bytes,
                      .scales = scales->bytes,
                      .scale_dtype = dtype,
                      .n_columns = n_columns,
                      .group_size = n_columns / n_scales};
  }

  void CheckPackedPiece(const Piece& piece, VerifiedTensor* result) {
    const std::optional<Int4Matrix> matrix = OpenInt4(piece);
    if (!matrix.has_value()) return;
    report_.scale_dtype = Name(matrix->scale_dtype);
    bool is_right = true;
    ForSlices(*matrix, [&](const Int4Matrix& rows) {
      const Int4Proof proof = ProveInt4(rows, pool_);
      result->counts.Merge(proof.counts);
      result->measured.Merge(proof.measured);
      if (!is_right || !proof.first_wrong.has_value()) return;
      is_right = false;
      Fault("tensor {} {}", piece.module, DescribeInt4Fault(rows, *proof.first_wrong));
    });
  }

  // A slice of rows after the other, so that little of either file is resident.
  template <typename Matrix, typename Check>
  void ForSlices(const Matrix& matrix, Check check) {
    const int64_t slice_rows = std::max<int64_t>(1, kProofSliceBytes / (matrix.n_columns * 2));
    for (int64_t row = 0; row < matrix.n_rows(); row += slice_rows) {
      const int64_t n_rows = std::min(slice_rows, matrix.n_rows() - row);
      const auto part = [&](std::span<const std::byte> bytes) {
        const auto row_bytes = std::ssize(bytes) / matrix.n_rows();
        return bytes.subspan(row * row_bytes, n_rows * row_bytes);
      };
      Matrix rows = matrix;
      rows.source = part(matrix.source);
      rows.codes = part(matrix.codes);
      rows.scales = part(matrix.scales);
      rows.first_row = row;
      check(rows);
      for (const auto& bytes : {rows.source, rows.codes, rows.scales}) ReleasePages(bytes);
      Advance(rows.source.size());
    }
  }

  void CheckInt8Piece(const Piece& piece, VerifiedTensor* result) {
    const Tensor& codes = *FindOutput(piece.module + ".weight");
    const Tensor* scales = FindOutput(piece.module + ".weight_scale");
    if (scales == nullptr) return Fault("tensor {}.weight_scale is missing", piece.module);
    const DType dtype = scales->info.dtype;
    const bool is_scale = dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32;
    if (codes.info.shape != std::vector{piece.n_rows, piece.n_columns()} || !is_scale ||
        scales->info.n_elements() != piece.n_rows) {
      return Fault(
          "tensor {}: expected codes I8 [{}, {}] and scales F32 or BF16 [{}, 1], found [{}] and "
          "{} [{}]",
          piece.module, piece.n_rows, piece.n_columns(), piece.n_rows,
          fmt::join(codes.info.shape, ", "), Name(dtype), fmt::join(scales->info.shape, ", "));
    }
    const Int8Matrix matrix = {.source = piece.bytes(),
                               .codes = codes.bytes,
                               .scales = scales->bytes,
                               .scale_dtype = dtype,
                               .n_columns = piece.n_columns()};
    bool is_right = true;
    ForSlices(matrix, [&](const Int8Matrix& rows) {
      const Int8Check found = CheckInt8(rows, pool_);
      result->measured.Merge(found.measured);
      if (!is_right || !found.first_wrong_row.has_value()) return;
      is_right = false;
      Fault("tensor {} {}", piece.module, DescribeInt8Fault(rows, *found.first_wrong_row));
    });
  }

  // A tied table may stand in the output a second time, as lm_head: packed in the table's very
  // bytes, or plain, in the source's.
  void CheckHeadOfTiedModel() {
    if (seen_.contains("lm_head.weight") || seen_.contains("lm_head.weight_packed")) return;
    const Tensor* table = SourceTable();
    if (const Tensor* head = FindOutput("lm_head.weight"); head != nullptr && table != nullptr) {
      CheckCopy(*table, *head);
    }
    if (FindOutput("lm_head.weight_packed") == nullptr) return;
    for (const std::string suffix : {".weight_packed", ".weight_scale", ".weight_shape"}) {
      const Tensor* head = FindOutput("lm_head" + suffix);
      const Tensor* packed = nullptr;
      std::string name;
      for (const std::string& spelling : Spellings("model.embed_tokens" + suffix)) {
        if (packed != nullptr) break;
        name = spelling;
        packed = output_.Find(name);
      }
      if (head == nullptr || packed == nullptr || !IsSame(*head, *packed)) {
        Fault("tensor lm_head{}: not the bytes of {}", suffix, name);
      }
    }
  }

  void Advance(uint64_t n_bytes) {
    done_bytes_ += n_bytes;
    if (progress_) progress_(done_bytes_, source_.size_bytes());
  }

  const Checkpoint& source_;
  const Checkpoint& output_;
  const gemma::Config& source_config_;
  bool is_text_only_;
  ThreadPool pool_;
  const ProgressFn& progress_;
  std::set<std::string> seen_;  // output tensors accounted for
  uint64_t done_bytes_ = 0;
  VerifyReport report_;
};

}  // namespace

Result<VerifyReport> Verify(const std::filesystem::path& source,
                            const std::filesystem::path& output, int n_threads,
                            const ProgressFn& progress) {
  NIBBLE_RETURN_IF_ERROR(ChosenInstructionSet());
  NIBBLE_ASSIGN_OR_RETURN(const gemma::Config source_config, gemma::ReadConfig(source));
  NIBBLE_ASSIGN_OR_RETURN(const gemma::Config output_config, gemma::ReadConfig(output));
  NIBBLE_ASSIGN_OR_RETURN(const Checkpoint source_tensors, Checkpoint::Open(source));
  NIBBLE_ASSIGN_OR_RETURN(const Checkpoint output_tensors, Checkpoint::Open(output));
  const bool is_text_only = output_config.layout == gemma::Layout::kTextOnly;
  Verifier verifier(source_tensors, output_tensors, source_config, is_text_only, n_threads,
                    progress);
  VerifyReport report = verifier.Run();
  if (const Status status = CheckConfig(source_config.json, output_config.json, output_tensors);
      !status.has_value()) {
    report.faults.push_back(
        fmt::format("{}: {}", (output / "config.json").string(), status.error().message));
  }
  return report;
}

}  // namespace nibble::repack
