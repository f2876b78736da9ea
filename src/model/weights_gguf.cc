#include "model/weights_gguf.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/float16.h"
#include "base/mapped_file.h"
#include "formats/int4_group32.h"
#include "formats/q4_0.h"
#include "formats/q6_k.h"
#include "gemma/gguf.h"
#include "gemma/tensors.h"
#include "model/weight_source.h"

namespace nibble::model {
namespace {

using checkpoint::GgmlType;
using checkpoint::GgufFile;
using checkpoint::GgufTensor;
using kernels::PackedWeight;

constexpr auto kMatrixTypes = {GgmlType::kQ40, GgmlType::kQ6K, GgmlType::kBF16, GgmlType::kF16,
                               GgmlType::kF32};
constexpr auto kPlainTypes = {GgmlType::kBF16, GgmlType::kF16, GgmlType::kF32};

DType DTypeOf(GgmlType type) {
  switch (type) {
    case GgmlType::kBF16:
      return DType::kBF16;
    case GgmlType::kF16:
      return DType::kF16;
    case GgmlType::kF32:
      return DType::kF32;
    default:
      CHECK(false);
  }
}

TableFormat TableFormatOf(GgmlType type) {
  switch (type) {
    case GgmlType::kQ40:
      return TableFormat::kQ40;
    case GgmlType::kQ6K:
      return TableFormat::kQ6K;
    case GgmlType::kBF16:
      return TableFormat::kBf16;
    case GgmlType::kF16:
      return TableFormat::kF16;
    case GgmlType::kF32:
      return TableFormat::kF32;
    default:
      CHECK(false);
  }
}

// F16 or F32 values: in bf16 where that holds each of them, else in float32.
PackedWeight PackFloats(std::span<const std::byte> bytes, DType dtype, int64_t n_rows,
                        int64_t n_columns, kernels::TileStore& store) {
  std::vector<float> values(static_cast<size_t>(n_rows * n_columns));
  std::vector<uint16_t> halves(values.size());
  bool fits = true;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = formats::ReadScale(bytes, dtype, static_cast<int64_t>(i));
    halves[i] = FloatToBf16(values[i]);
    fits = fits && Bf16ToFloat(halves[i]) == values[i];
  }
  if (fits) {
    return PackedWeight::FromBf16(std::as_bytes(std::span(halves)), n_rows, n_columns, store);
  }
  return PackedWeight::FromFloat32(std::as_bytes(std::span(values)), n_rows, n_columns, store);
}

PackedWeight PackAs(GgmlType type, std::span<const std::byte> bytes, int64_t n_rows,
                    int64_t n_columns, kernels::TileStore& store) {
  switch (type) {
    case GgmlType::kQ40:
      return PackedWeight::FromQ40(bytes, n_rows, n_columns, store);
    case GgmlType::kQ6K:
      return PackedWeight::FromQ6K(bytes, n_rows, n_columns, store);
    case GgmlType::kBF16:
      return PackedWeight::FromBf16(bytes, n_rows, n_columns, store);
    default:
      return PackFloats(bytes, DTypeOf(type), n_rows, n_columns, store);
  }
}

class GgufSource : public WeightSource {
 public:
  static Result<GgufSource> Create(const gemma::Config& config, const GgufFile& file,
                                   kernels::TileStore& store) {
    GgufSource source(file, store);
    for (gemma::TensorSpec& spec : gemma::ExpectedTensors(config)) {
      std::string name = spec.name;
      source.shapes_.emplace(std::move(name), std::move(spec.shape));
    }
    for (const GgufTensor& tensor : file.header().tensors) {
      const std::optional<std::string> name = gemma::CanonicalName(tensor.name);
      if (name.has_value() && gemma::IsIgnoredLeftover(config, *name)) continue;
      if (tensor.name == gemma::kGgufRopeFactors) continue;  // the config has read it
      if (!name.has_value() || !source.shapes_.contains(*name)) {
        return Fail("{}: {}: not a tensor of this architecture", file.where(),
                    QuoteForMessage(tensor.name));
      }
      source.tensors_.emplace(*name, &tensor);
    }
    return source;
  }

  Status BindMatrix(const std::string& name, PackedWeight& weight) override {
    NIBBLE_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, kMatrixTypes));
    weight = PackAs(tensor->type, file_.Bytes(*tensor), tensor->dims[1], tensor->dims[0], store_);
    ReleasePages(file_.Bytes(*tensor));  // of what was copied, only the copy stays resident
    return {};
  }

  Status BindExperts(const std::string& name, std::vector<PackedWeight>& bank) override {
    NIBBLE_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, kMatrixTypes));
    const auto n_experts = static_cast<size_t>(tensor->dims[2]);
    const size_t expert_bytes = tensor->size_bytes / n_experts;
    for (size_t i = 0; i < n_experts; ++i) {
      bank.push_back(PackAs(tensor->type,
                            file_.Bytes(*tensor).subspan(i * expert_bytes, expert_bytes),
                            tensor->dims[1], tensor->dims[0], store_));
    }
    ReleasePages(file_.Bytes(*tensor));
    return {};
  }

  Status BindFloats(const std::string& name, std::vector<float>& values) override {
    NIBBLE_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, kPlainTypes));
    const std::span<const std::byte> bytes = file_.Bytes(*tensor);
    for (int64_t i = 0; i < tensor->dims[0]; ++i) {
      values.push_back(formats::ReadScale(bytes, DTypeOf(tensor->type), i));
    }
    return {};
  }

  Status BindTable(const std::string& name, Table& table) override {
    NIBBLE_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, kMatrixTypes));
    table = {.n_rows = tensor->dims[1],
             .width = tensor->dims[0],
             .format = TableFormatOf(tensor->type),
             .rows = file_.Bytes(*tensor)};
    return {};
  }

  // Create() has refused what has no place, and every place is asked for.
  Status CheckNothingLeft() const override { return {}; }

 private:
  GgufSource(const GgufFile& file, kernels::TileStore& store) : file_(file), store_(store) {}

  Result<const GgufTensor*> Find(const std::string& name,
                                 std::initializer_list<GgmlType> types) const {
    const std::vector<int64_t>& shape = shapes_.at(name);
    const std::vector<int64_t> dims(shape.rbegin(), shape.rend());
    std::vector<std::string_view> type_names;
    for (const GgmlType type : types) type_names.push_back(checkpoint::InfoOf(type).name);
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      return Fail("{}: {}: missing; expected {} [{}]", file_.where(), *gemma::GgufName(name),
                  fmt::join(type_names, " or "), fmt::join(dims, ", "));
    }
    const GgufTensor& tensor = *found->second;
    if (tensor.dims == dims && std::ranges::find(types, tensor.type) != types.end()) {
      return &tensor;
    }
    return Fail("{}: {}: expected {} [{}], found {} [{}]", file_.where(), tensor.name,
                fmt::join(type_names, " or "), fmt::join(dims, ", "),
                checkpoint::InfoOf(tensor.type).name, fmt::join(tensor.dims, ", "));
  }

  const GgufFile& file_;
  kernels::TileStore& store_;
  std::unordered_map<std::string, std::vector<int64_t>> shapes_;  // by canonical name,
  std::unordered_map<std::string, const GgufTensor*> tensors_;    // as are these
};

}  // namespace

void ReadGgufRow(const Table& table, int64_t row, float* out) {
  const size_t row_bytes = table.rows.size() / static_cast<size_t>(table.n_rows);
  const auto bytes = table.rows.subspan(static_cast<size_t>(row) * row_bytes, row_bytes);
  const auto read_blocks = [&]<size_t kBytes, size_t kSize>(void (*dequantize)(
                               std::span<const std::byte, kBytes>, std::span<float, kSize>)) {
    for (size_t i = 0; i < row_bytes / kBytes; ++i) {
      dequantize(bytes.subspan(i * kBytes).first<kBytes>(),
                 std::span<float, kSize>(out + i * kSize, kSize));
    }
  };
  switch (table.format) {
    case TableFormat::kF16:
    case TableFormat::kF32: {
      const DType dtype = table.format == TableFormat::kF16 ? DType::kF16 : DType::kF32;
      for (int64_t i = 0; i < table.width; ++i) out[i] = formats::ReadScale(bytes, dtype, i);
      return;
    }
    case TableFormat::kQ40:
      return read_blocks(formats::DequantizeQ40Block);
    case TableFormat::kQ6K:
      return read_blocks(formats::DequantizeQ6KBlock);
    default:
      CHECK(false);
  }
}

Result<Weights> BindGguf(GgufFile file, kernels::TileStore& store) {
  NIBBLE_ASSIGN_OR_RETURN(gemma::Config config, gemma::ConfigFromGguf(file));
  const auto files = std::make_shared<const GgufFile>(std::move(file));
  Weights weights{.config = std::move(config), .files = files};
  NIBBLE_ASSIGN_OR_RETURN(GgufSource source, GgufSource::Create(weights.config, *files, store));
  NIBBLE_RETURN_IF_ERROR(BindAll(source, files->where(), &weights));
  return weights;
}

}  // namespace nibble::model
