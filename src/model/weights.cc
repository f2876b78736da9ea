#include "model/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/float16.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "formats/int4_group32.h"
#include "gemma/tensors.h"
#include "kernels/tile_store.h"
#include "model/weight_source.h"
#include "model/weights_gguf.h"

namespace nibble::model {
namespace {

using checkpoint::Tensor;
using kernels::PackedWeight;
using kernels::WeightFormat;

// A linear or a table as the file holds it.
struct Matrix {
  WeightFormat format = WeightFormat::kBf16;
  const Tensor* values = nullptr;  // X.weight, or X.weight_packed
  const Tensor* scales = nullptr;  // X.weight_scale; not with bf16
  int64_t n_rows = 0;
  int64_t n_columns = 0;
};

std::string_view RemoveSuffix(std::string_view name, std::string_view suffix) {
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : name;
}

Status ExpectShape(std::string_view path, const Tensor& tensor, std::span<const int64_t> shape) {
  if (std::ranges::equal(tensor.info.shape, shape)) return {};
  return Fail("{}: {}: expected shape {}, found {} [{}]", path, tensor.info.name, shape,
              Name(tensor.info.dtype), fmt::join(tensor.info.shape, ", "));
}

// Finds tensors by canonical name and remembers which were used.
class Binder : public WeightSource {
 public:
  static Result<Binder> Create(const gemma::Config& config,
                               const checkpoint::Checkpoint& checkpoint,
                               kernels::TileStore& store) {
    Binder binder(config, checkpoint, store);
    for (gemma::TensorSpec& spec : gemma::ExpectedTensors(config)) {
      std::string name = spec.name;
      binder.specs_.emplace(std::move(name), std::move(spec));
    }
    for (const Tensor& tensor : checkpoint.tensors()) {
      const std::optional<std::string> name = gemma::TextName(tensor.info.name);
      if (!name.has_value()) continue;  // a tower's
      // A name may stand in two shards; Find gives the one that the index chose.
      const Tensor* chosen = checkpoint.Find(tensor.info.name);
      const auto [it, inserted] = binder.tensors_.emplace(*name, chosen);
      if (!inserted && it->second != chosen) {
        return Fail("{}: {} and {} are the same tensor", binder.path_, it->second->info.name,
                    tensor.info.name);
      }
    }
    return binder;
  }

  // A matrix is used once by its name; `name` ends in ".weight".
  Result<Matrix> FindMatrix(const std::string& name) {
    CHECK(Shape(name).size() == 2);
    return FindMatrix(name, Shape(name));
  }

  Result<Matrix> FindMatrix(const std::string& name, const std::vector<int64_t>& shape) {
    if (const Tensor* plain = Use(name); plain != nullptr) {
      NIBBLE_RETURN_IF_ERROR(ExpectShape(path_, *plain, shape));
      if (plain->info.dtype == DType::kI8) return WithChannelScales(name, *plain);
      NIBBLE_RETURN_IF_ERROR(ExpectDType(*plain, {DType::kBF16, DType::kI8}));
      return Matrix{WeightFormat::kBf16, plain, nullptr, shape[0], shape[1]};
    }
    const Tensor* packed = Use(name + "_packed");
    if (packed == nullptr) {
      return Fail("{}: {}: missing; expected BF16 [{}], or {}_packed with its scales", path_, name,
                  fmt::join(shape, ", "), name);
    }
    const Tensor* scales = Use(name + "_scale");
    if (scales == nullptr) return Fail("{}: {}_scale: missing", path_, name);
    if (shape[1] % formats::kGroupSize != 0) {
      return Fail("{}: {}_packed: {} columns are no multiple of the group size {}", path_, name,
                  shape[1], formats::kGroupSize);
    }
    const int64_t packed_shape[] = {shape[0], shape[1] / 8};
    const int64_t scale_shape[] = {shape[0], shape[1] / formats::kGroupSize};
    NIBBLE_RETURN_IF_ERROR(ExpectShape(path_, *packed, packed_shape));
    NIBBLE_RETURN_IF_ERROR(ExpectDType(*packed, {DType::kI32}));
    NIBBLE_RETURN_IF_ERROR(ExpectShape(path_, *scales, scale_shape));
    NIBBLE_RETURN_IF_ERROR(ExpectDType(*scales, {DType::kBF16, DType::kF16, DType::kF32}));
    NIBBLE_RETURN_IF_ERROR(CheckStoredShape(name, shape));
    return Matrix{WeightFormat::kInt4, packed, scales, shape[0], shape[1]};
  }

  Status BindMatrix(const std::string& name, PackedWeight& weight) override {
    NIBBLE_ASSIGN_OR_RETURN(const Matrix matrix, FindMatrix(name));
    weight = Pack(matrix);
    return {};
  }

  PackedWeight Pack(const Matrix& matrix) {
    const std::span<const std::byte> values = matrix.values->bytes;
    const std::span<const std::byte> scales =
        matrix.scales == nullptr ? std::span<const std::byte>() : matrix.scales->bytes;
    PackedWeight weight = Pack(matrix, values, scales);
    ReleasePages(values);  // of what was copied, only the copy stays resident
    ReleasePages(scales);
    return weight;
  }

  // An expert bank [E, N, K] as E matrices: stored whole in bf16, or cut into a linear per expert
  // and projection, in any form that a linear may have.
  Status BindExperts(const std::string& name, std::vector<PackedWeight>& experts) override {
    const std::vector<int64_t>& shape = Shape(name);
    CHECK(shape.size() == 3);
    const size_t dot = name.rfind('.');
    const std::string module = name.substr(0, dot);
    std::vector<std::string> projections = {name.substr(dot + 1)};
    if (projections[0] == "gate_up_proj") projections = {"gate_proj", "up_proj"};
    if (!HasMatrix(fmt::format("{}.0.{}.weight", module, projections[0]))) {
      return BindWholeBank(name, experts);
    }
    const std::vector<int64_t> part = {shape[1] / std::ssize(projections), shape[2]};
    for (int64_t expert = 0; expert < shape[0]; ++expert) {
      std::vector<Matrix> matrices;
      for (const std::string& projection : projections) {
        const std::string weight = fmt::format("{}.{}.{}.weight", module, expert, projection);
        NIBBLE_ASSIGN_OR_RETURN(const Matrix matrix, FindMatrix(weight, part));
        matrices.push_back(matrix);
      }
      NIBBLE_ASSIGN_OR_RETURN(PackedWeight stacked, Stack(matrices));
      experts.push_back(std::move(stacked));
    }
    return {};
  }

  // A plain tensor as floats.
  Status BindFloats(const std::string& name, std::vector<float>& values) override {
    NIBBLE_ASSIGN_OR_RETURN(const Tensor* tensor,
                            FindWhole(name, {DType::kBF16, DType::kF16, DType::kF32}));
    values.resize(static_cast<size_t>(tensor->info.n_elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = formats::ReadScale(tensor->bytes, tensor->info.dtype, static_cast<int64_t>(i));
    }
    return {};
  }

  Status BindTable(const std::string& name, Table& table) override {
    NIBBLE_ASSIGN_OR_RETURN(const Matrix matrix, FindMatrix(name));
    if (matrix.format == WeightFormat::kInt8Channel) {
      return Fail("{}: {}: expected a table in BF16 or packed int4, found I8", path_, name);
    }
    table = {
        .n_rows = matrix.n_rows,
        .width = matrix.n_columns,
        .format = matrix.format == WeightFormat::kBf16 ? TableFormat::kBf16 : TableFormat::kInt4,
        .rows = matrix.values->bytes};
    if (matrix.scales != nullptr) {
      table.scales = matrix.scales->bytes;
      table.scale_dtype = matrix.scales->info.dtype;
    }
    return {};
  }

  // Error if the file holds a text tensor that nothing asked for.
  Status CheckNothingLeft() const override {
    for (const auto& [name, tensor] : tensors_) {
      if (used_.contains(name)) continue;
      std::string_view logical = name;
      for (const std::string_view suffix : {"_packed", "_scale", "_shape"}) {
        logical = RemoveSuffix(logical, suffix);
      }
      if (gemma::IsIgnoredLeftover(config_, logical)) continue;
      if (config_.tie_word_embeddings && logical == "lm_head.weight") continue;
      if (RepeatsK(name, *tensor)) continue;
      return Fail("{}: {}: not a tensor of this architecture", path_, tensor->info.name);
    }
    return {};
  }

 private:
  Binder(const gemma::Config& config, const checkpoint::Checkpoint& checkpoint,
         kernels::TileStore& store)
      : config_(config), store_(store), path_(checkpoint.path().string()) {}

  Result<Matrix> WithChannelScales(const std::string& name, const Tensor& codes) {
    const Tensor* scales = Use(name + "_scale");
    if (scales == nullptr) return Fail("{}: {}_scale: missing", path_, name);
    const int64_t n_rows = codes.info.shape[0];
    const int64_t n_columns = codes.info.shape[1];
    const int64_t scale_shape[] = {n_rows, 1};
    NIBBLE_RETURN_IF_ERROR(ExpectShape(path_, *scales, scale_shape));
    NIBBLE_RETURN_IF_ERROR(ExpectDType(*scales, {DType::kF32, DType::kBF16, DType::kF16}));
    if (n_columns > kernels::kMaxInt8Columns) {
      return Fail("{}: {}: {} columns of int8, expected at most {}", path_, name, n_columns,
                  kernels::kMaxInt8Columns);
    }
    return Matrix{WeightFormat::kInt8Channel, &codes, scales, n_rows, n_columns};
  }

  PackedWeight Pack(const Matrix& matrix, std::span<const std::byte> values,
                    std::span<const std::byte> scales) {
    switch (matrix.format) {
      case WeightFormat::kBf16:
        return PackedWeight::FromBf16(values, matrix.n_rows, matrix.n_columns, store_);
      case WeightFormat::kInt8Channel:
        return PackedWeight::FromInt8Channel(values, scales, matrix.scales->info.dtype,
                                             matrix.n_rows, matrix.n_columns, store_);
      default:
        return PackedWeight::FromInt4(values, scales, matrix.scales->info.dtype, matrix.n_rows,
                                      matrix.n_columns, store_);
    }
  }

  Status BindWholeBank(const std::string& name, std::vector<PackedWeight>& experts) {
    NIBBLE_ASSIGN_OR_RETURN(const Tensor* bank, FindWhole(name, {DType::kBF16}));
    const std::vector<int64_t>& shape = Shape(name);
    const auto expert_bytes = static_cast<size_t>(shape[1] * shape[2] * 2);
    for (int64_t expert = 0; expert < shape[0]; ++expert) {
      experts.push_back(PackedWeight::FromBf16(
          bank->bytes.subspan(static_cast<size_t>(expert) * expert_bytes, expert_bytes), shape[1],
          shape[2], store_));
    }
    ReleasePages(bank->bytes);
    return {};
  }

  // Matrices of one form and one K, their rows one after the other.
  Result<PackedWeight> Stack(const std::vector<Matrix>& matrices) {
    Matrix all = matrices.front();
    if (matrices.size() == 1) return Pack(all);
    std::vector<std::byte> values;
    std::vector<std::byte> scales;
    all.n_rows = 0;
    for (const Matrix& matrix : matrices) {
      const bool same_scales = matrix.scales == nullptr || all.scales == nullptr ||
                               matrix.scales->info.dtype == all.scales->info.dtype;
      if (matrix.format != all.format || !same_scales) {
        return Fail("{}: {}: not in the form of {}, beside which it is used", path_,
                    matrix.values->info.name, all.values->info.name);
      }
      all.n_rows += matrix.n_rows;
      if (store_.is_filled()) continue;  // nothing will be read
      values.insert(values.end(), matrix.values->bytes.begin(), matrix.values->bytes.end());
      ReleasePages(matrix.values->bytes);
      if (matrix.scales == nullptr) continue;
      scales.insert(scales.end(), matrix.scales->bytes.begin(), matrix.scales->bytes.end());
      ReleasePages(matrix.scales->bytes);
    }
    return Pack(all, values, scales);
  }

  bool HasMatrix(const std::string& name) const {
    return tensors_.contains(name) || tensors_.contains(name + "_packed");
  }

  const std::vector<int64_t>& Shape(const std::string& name) const {
    const auto it = specs_.find(name);
    CHECK(it != specs_.end());  // we ask only for what gemma/ expects
    return it->second.shape;
  }

  // A v_proj stored in a layer whose V is K, equal to its k_proj.
  bool RepeatsK(const std::string& name, const Tensor& tensor) const {
    const size_t at = name.find(".self_attn.v_proj.");
    if (at == std::string::npos) return false;
    std::string k_name = name;
    k_name[at + std::string_view(".self_attn.").size()] = 'k';
    const auto k = tensors_.find(k_name);
    return k != tensors_.end() && std::ranges::equal(k->second->bytes, tensor.bytes);
  }

  const Tensor* Use(const std::string& name) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return nullptr;
    used_.insert(name);
    return it->second;
  }

  Result<const Tensor*> FindWhole(const std::string& name, std::vector<DType> dtypes) {
    const Tensor* tensor = Use(name);
    if (tensor == nullptr) {
      return Fail("{}: {}: missing; expected {} [{}]", path_, name, Name(dtypes[0]),
                  fmt::join(Shape(name), ", "));
    }
    NIBBLE_RETURN_IF_ERROR(ExpectShape(path_, *tensor, Shape(name)));
    NIBBLE_RETURN_IF_ERROR(ExpectDType(*tensor, dtypes));
    return tensor;
  }

  Status ExpectDType(const Tensor& tensor, const std::vector<DType>& dtypes) const {
    if (std::ranges::find(dtypes, tensor.info.dtype) != dtypes.end()) return {};
    std::vector<std::string_view> names;
    names.reserve(dtypes.size());
    for (const DType dtype : dtypes) names.push_back(Name(dtype));
    return Fail("{}: {}: expected {}, found {} [{}]", path_, tensor.info.name,
                fmt::join(names, " or "), Name(tensor.info.dtype),
                fmt::join(tensor.info.shape, ", "));
  }

  // X.weight_shape, where there is one, must say what the architecture says.
  Status CheckStoredShape(const std::string& name, const std::vector<int64_t>& shape) {
    const Tensor* stored = Use(name + "_shape");
    if (stored == nullptr) return {};
    NIBBLE_RETURN_IF_ERROR(ExpectDType(*stored, {DType::kI64}));
    const int64_t two[] = {2};
    NIBBLE_RETURN_IF_ERROR(ExpectShape(path_, *stored, two));
    int64_t values[2];
    std::memcpy(values, stored->bytes.data(), sizeof values);
    if (values[0] != shape[0] || values[1] != shape[1]) {
      return Fail("{}: {}: expected [{}], found [{}, {}]", path_, stored->info.name,
                  fmt::join(shape, ", "), values[0], values[1]);
    }
    return {};
  }

  const gemma::Config& config_;
  kernels::TileStore& store_;
  std::string path_;
  std::unordered_map<std::string, gemma::TensorSpec> specs_;
  std::unordered_map<std::string, const Tensor*> tensors_;
  std::unordered_set<std::string> used_;
};

}  // namespace

void Table::Gather(const kernels::KernelTable& kernels, int64_t row, float scale,
                   float* out) const {
  const auto row_of = [&](std::span<const std::byte> all) {
    return all.data() + row * (static_cast<int64_t>(all.size()) / n_rows);
  };
  switch (format) {
    case TableFormat::kBf16:
      return kernels.gather_bf16(row_of(rows), width, scale, out);
    case TableFormat::kInt4:
      return kernels.gather_int4(row_of(rows), row_of(scales), scale_dtype, width, scale, out);
    case TableFormat::kF16:
    case TableFormat::kF32:
    case TableFormat::kQ40:
    case TableFormat::kQ6K:
      ReadGgufRow(*this, row, out);
      for (int64_t i = 0; i < width; ++i) out[i] *= scale;
      return;
  }
  CHECK(false);
}

void Table::ReleaseRows() const {
  ReleasePages(rows);
  ReleasePages(scales);
}

int64_t Weights::n_token_ids() const {
  return config.ple_width > 0 ? std::min(embed_tokens.n_rows, embed_tokens_per_layer.n_rows)
                              : embed_tokens.n_rows;
}

int64_t Weights::BytesPerToken() const {
  int64_t bytes = lm_head.size_bytes() + per_layer_model_projection.size_bytes();
  for (const LayerWeights& w : layers) {
    for (const PackedWeight* weight :
         {&w.q_proj, &w.k_proj, &w.v_proj, &w.o_proj, &w.gate_proj, &w.up_proj, &w.down_proj,
          &w.per_layer_input_gate, &w.per_layer_projection, &w.router_proj}) {
      bytes += weight->size_bytes();
    }
    if (!w.expert_down.empty()) {
      bytes +=
          config.top_k_experts * (w.expert_gate_up[0].size_bytes() + w.expert_down[0].size_bytes());
    }
  }
  return bytes;
}

Result<Weights> BindWeights(gemma::Config config, checkpoint::Checkpoint checkpoint,
                            kernels::TileStore& store) {
  const auto files = std::make_shared<const checkpoint::Checkpoint>(std::move(checkpoint));
  Weights weights{.config = std::move(config), .files = files};
  NIBBLE_ASSIGN_OR_RETURN(Binder binder, Binder::Create(weights.config, *files, store));
  NIBBLE_RETURN_IF_ERROR(BindAll(binder, files->path().string(), &weights));
  return weights;
}

namespace {

Result<Weights> LoadInto(kernels::TileStore& store, const std::filesystem::path& path) {
  if (checkpoint::IsGgufPath(path)) {
    NIBBLE_ASSIGN_OR_RETURN(checkpoint::GgufFile file, checkpoint::GgufFile::Open(path));
    return BindGguf(std::move(file), store);
  }
  NIBBLE_ASSIGN_OR_RETURN(gemma::Config config, gemma::ReadConfig(path));
  NIBBLE_ASSIGN_OR_RETURN(checkpoint::Checkpoint checkpoint, checkpoint::Checkpoint::Open(path));
  return BindWeights(std::move(config), std::move(checkpoint), store);
}

// What tells a model's files from others and from themselves after a change: their names, sizes
// and times of last change.
Result<std::string> FilesDigest(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files = {path};
  std::error_code error;
  if (fs::is_directory(path, error)) {
    files.clear();
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
      const fs::path extension = entry.path().extension();
      if (extension == ".safetensors" || extension == ".json") files.push_back(entry.path());
    }
    std::ranges::sort(files);
  }
  std::string facts;
  for (const fs::path& file : files) {
    const uintmax_t bytes = fs::file_size(file, error);
    if (error) return Fail("{}: {}", file.string(), error.message());
    const auto changed = fs::last_write_time(file, error).time_since_epoch().count();
    facts += fmt::format("{} {} {}\n", fs::absolute(file).string(), bytes, changed);
  }
  return Sha256Hex(std::as_bytes(std::span(facts)));
}

}  // namespace

Result<Weights> LoadWeights(const std::filesystem::path& path, ThreadPool& pool,
                            const std::filesystem::path& cache_directory) {
  kernels::TileStore store(pool);
  if (cache_directory.empty()) return LoadInto(store, path);
  NIBBLE_ASSIGN_OR_RETURN(const std::string digest, FilesDigest(path));
  const std::filesystem::path cache = cache_directory / (digest.substr(0, 32) + ".tiles");
  std::error_code error;
  if (std::filesystem::exists(cache, error)) {
    NIBBLE_ASSIGN_OR_RETURN(kernels::TileStore saved,
                            kernels::TileStore::Open(cache, digest, pool));
    return LoadInto(saved, path);
  }
  NIBBLE_ASSIGN_OR_RETURN(Weights weights, LoadInto(store, path));
  NIBBLE_RETURN_IF_ERROR(store.Save(cache, digest));
  return weights;
}

}  // namespace nibble::model
