#include "model/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/float16.h"
#include "formats/int4_group32.h"
#include "gemma/tensors.h"

namespace nibble::model {
namespace {

using checkpoint::Tensor;
using kernels::PackedWeight;
using kernels::WeightFormat;

// A linear or a table as the file holds it.
struct Matrix {
  WeightFormat format = WeightFormat::kBf16;
  const Tensor* values = nullptr;  // X.weight, or X.weight_packed
  const Tensor* scales = nullptr;  // X.weight_scale
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
class Binder {
 public:
  static Result<Binder> Create(const gemma::Config& config,
                               const checkpoint::Checkpoint& checkpoint, ThreadPool& pool) {
    Binder binder(config, checkpoint, pool);
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
    const std::vector<int64_t>& shape = Shape(name);
    CHECK(shape.size() == 2);
    if (const Tensor* plain = Use(name); plain != nullptr) {
      NIBBLE_RETURN_IF_ERROR(ExpectShape(path_, *plain, shape));
      NIBBLE_RETURN_IF_ERROR(ExpectDType(*plain, {DType::kBF16}));
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

  Status Bind(const std::string& name, PackedWeight& weight) {
    NIBBLE_ASSIGN_OR_RETURN(const Matrix matrix, FindMatrix(name));
    weight = Pack(matrix);
    return {};
  }

  PackedWeight Pack(const Matrix& matrix) {
    if (matrix.format == WeightFormat::kBf16) {
      return PackedWeight::FromBf16(matrix.values->bytes, matrix.n_rows, matrix.n_columns, pool_);
    }
    return PackedWeight::FromInt4(matrix.values->bytes, matrix.scales->bytes,
                                  matrix.scales->info.dtype, matrix.n_rows, matrix.n_columns,
                                  pool_);
  }

  // An expert bank [E, N, K] as E matrices.
  Status Bind(const std::string& name, std::vector<PackedWeight>& experts) {
    NIBBLE_ASSIGN_OR_RETURN(const Tensor* bank, FindWhole(name, {DType::kBF16}));
    const std::vector<int64_t>& shape = Shape(name);
    CHECK(shape.size() == 3);
    const auto expert_bytes = static_cast<size_t>(shape[1] * shape[2] * 2);
    for (int64_t expert = 0; expert < shape[0]; ++expert) {
      experts.push_back(PackedWeight::FromBf16(
          bank->bytes.subspan(static_cast<size_t>(expert) * expert_bytes, expert_bytes), shape[1],
          shape[2], pool_));
    }
    return {};
  }

  // A plain tensor as floats.
  Status Bind(const std::string& name, std::vector<float>& values) {
    NIBBLE_ASSIGN_OR_RETURN(const Tensor* tensor,
                            FindWhole(name, {DType::kBF16, DType::kF16, DType::kF32}));
    values.resize(static_cast<size_t>(tensor->info.n_elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = formats::ReadScale(tensor->bytes, tensor->info.dtype, static_cast<int64_t>(i));
    }
    return {};
  }

  Status Bind(const std::string& name, float& value) {
    std::vector<float> values;
    NIBBLE_RETURN_IF_ERROR(Bind(name, values));
    CHECK(values.size() == 1);
    value = values[0];
    return {};
  }

  Status Bind(const std::string& name, Table& table) {
    NIBBLE_ASSIGN_OR_RETURN(const Matrix matrix, FindMatrix(name));
    table = {.n_rows = matrix.n_rows,
             .width = matrix.n_columns,
             .format = matrix.format,
             .rows = matrix.values->bytes.data()};
    if (matrix.scales != nullptr) {
      table.scales = matrix.scales->bytes.data();
      table.scale_dtype = matrix.scales->info.dtype;
    }
    return {};
  }

  // Error if the file holds a text tensor that nothing asked for.
  Status CheckNothingLeft() const {
    for (const auto& [name, tensor] : tensors_) {
      if (used_.contains(name)) continue;
      std::string_view logical = name;
      for (const std::string_view suffix : {"_packed", "_scale", "_shape"}) {
        logical = RemoveSuffix(logical, suffix);
      }
      if (gemma::IsIgnoredLeftover(config_, logical)) continue;
      if (config_.tie_word_embeddings && logical == "lm_head.weight") continue;
      return Fail("{}: {}: not a tensor of this architecture", path_, tensor->info.name);
    }
    return {};
  }

 private:
  Binder(const gemma::Config& config, const checkpoint::Checkpoint& checkpoint, ThreadPool& pool)
      : config_(config), pool_(pool), path_(checkpoint.path().string()) {}

  const std::vector<int64_t>& Shape(const std::string& name) const {
    const auto it = specs_.find(name);
    CHECK(it != specs_.end());  // we ask only for what gemma/ expects
    return it->second.shape;
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
  ThreadPool& pool_;
  std::string path_;
  std::unordered_map<std::string, gemma::TensorSpec> specs_;
  std::unordered_map<std::string, const Tensor*> tensors_;
  std::unordered_set<std::string> used_;
};

Status BindMoe(Binder& binder, const std::string& prefix, LayerWeights& w) {
  NIBBLE_RETURN_IF_ERROR(binder.Bind(prefix + "router.proj.weight", w.router_proj));
  NIBBLE_RETURN_IF_ERROR(binder.Bind(prefix + "router.scale", w.router_scale));
  NIBBLE_RETURN_IF_ERROR(binder.Bind(prefix + "router.per_expert_scale", w.per_expert_scale));
  NIBBLE_RETURN_IF_ERROR(binder.Bind(prefix + "experts.gate_up_proj", w.expert_gate_up));
  NIBBLE_RETURN_IF_ERROR(binder.Bind(prefix + "experts.down_proj", w.expert_down));
  NIBBLE_RETURN_IF_ERROR(
      binder.Bind(prefix + "pre_feedforward_layernorm_2.weight", w.pre_feedforward_layernorm_2));
  NIBBLE_RETURN_IF_ERROR(
      binder.Bind(prefix + "post_feedforward_layernorm_1.weight", w.post_feedforward_layernorm_1));
  return binder.Bind(prefix + "post_feedforward_layernorm_2.weight",
                     w.post_feedforward_layernorm_2);
}

Status BindLayer(Binder& binder, const gemma::Config& config, int layer_idx, LayerWeights& w) {
  const std::string prefix = fmt::format("model.layers.{}.", layer_idx);
  const auto bind = [&](std::string_view name, auto& place) {
    return binder.Bind(prefix + std::string(name) + ".weight", place);
  };
  NIBBLE_RETURN_IF_ERROR(bind("input_layernorm", w.input_layernorm));
  NIBBLE_RETURN_IF_ERROR(bind("self_attn.q_proj", w.q_proj));
  NIBBLE_RETURN_IF_ERROR(bind("self_attn.o_proj", w.o_proj));
  NIBBLE_RETURN_IF_ERROR(bind("self_attn.q_norm", w.q_norm));
  if (config.OwnsKv(layer_idx)) {
    NIBBLE_RETURN_IF_ERROR(bind("self_attn.k_proj", w.k_proj));
    NIBBLE_RETURN_IF_ERROR(bind("self_attn.k_norm", w.k_norm));
    if (!config.layers[layer_idx].k_eq_v) {
      NIBBLE_RETURN_IF_ERROR(bind("self_attn.v_proj", w.v_proj));
    }
  }
  NIBBLE_RETURN_IF_ERROR(bind("post_attention_layernorm", w.post_attention_layernorm));
  NIBBLE_RETURN_IF_ERROR(bind("pre_feedforward_layernorm", w.pre_feedforward_layernorm));
  NIBBLE_RETURN_IF_ERROR(bind("mlp.gate_proj", w.gate_proj));
  NIBBLE_RETURN_IF_ERROR(bind("mlp.up_proj", w.up_proj));
  NIBBLE_RETURN_IF_ERROR(bind("mlp.down_proj", w.down_proj));
  NIBBLE_RETURN_IF_ERROR(bind("post_feedforward_layernorm", w.post_feedforward_layernorm));
  NIBBLE_RETURN_IF_ERROR(binder.Bind(prefix + "layer_scalar", w.layer_scalar));
  if (config.ple_width > 0) {
    NIBBLE_RETURN_IF_ERROR(bind("per_layer_input_gate", w.per_layer_input_gate));
    NIBBLE_RETURN_IF_ERROR(bind("per_layer_projection", w.per_layer_projection));
    NIBBLE_RETURN_IF_ERROR(bind("post_per_layer_input_norm", w.post_per_layer_input_norm));
  }
  return config.n_experts > 0 ? BindMoe(binder, prefix, w) : Status{};
}

}  // namespace

void Table::Gather(const kernels::KernelTable& kernels, int64_t row, float scale,
                   float* out) const {
  if (format == WeightFormat::kBf16) {
    return kernels.gather_bf16(rows + row * width * 2, width, scale, out);
  }
  kernels.gather_int4(rows + row * width / 2,
                      scales + row * (width / formats::kGroupSize) * SizeBytes(scale_dtype),
                      scale_dtype, width, scale, out);
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
                            ThreadPool& pool) {
  for (const gemma::LayerConfig& layer : config.layers) {
    if (layer.head_dim % kernels::kHeadDimMultiple != 0) {
      return Fail("{}: head_dim {}: expected a multiple of {}", checkpoint.path().string(),
                  layer.head_dim, kernels::kHeadDimMultiple);
    }
  }
  Weights weights{.config = std::move(config), .checkpoint = std::move(checkpoint)};
  NIBBLE_ASSIGN_OR_RETURN(Binder binder, Binder::Create(weights.config, weights.checkpoint, pool));
  const std::string embed_name = "model.embed_tokens.weight";
  NIBBLE_RETURN_IF_ERROR(binder.Bind(embed_name, weights.embed_tokens));
  if (weights.config.ple_width > 0) {
    NIBBLE_RETURN_IF_ERROR(
        binder.Bind("model.embed_tokens_per_layer.weight", weights.embed_tokens_per_layer));
    NIBBLE_RETURN_IF_ERROR(
        binder.Bind("model.per_layer_model_projection.weight", weights.per_layer_model_projection));
    NIBBLE_RETURN_IF_ERROR(
        binder.Bind("model.per_layer_projection_norm.weight", weights.per_layer_projection_norm));
  }
  weights.layers.resize(static_cast<size_t>(weights.config.n_layers()));
  for (int i = 0; i < weights.config.n_layers(); ++i) {
    NIBBLE_RETURN_IF_ERROR(BindLayer(binder, weights.config, i, weights.layers[i]));
  }
  NIBBLE_RETURN_IF_ERROR(binder.Bind("model.norm.weight", weights.norm));
  const bool tied = weights.config.tie_word_embeddings;
  NIBBLE_RETURN_IF_ERROR(binder.Bind(tied ? embed_name : "lm_head.weight", weights.lm_head));
  NIBBLE_RETURN_IF_ERROR(binder.CheckNothingLeft());
  return weights;
}

Result<Weights> LoadWeights(const std::filesystem::path& dir, ThreadPool& pool) {
  NIBBLE_ASSIGN_OR_RETURN(gemma::Config config, gemma::ReadConfig(dir));
  NIBBLE_ASSIGN_OR_RETURN(checkpoint::Checkpoint checkpoint, checkpoint::Checkpoint::Open(dir));
  return BindWeights(std::move(config), std::move(checkpoint), pool);
}

}  // namespace nibble::model
