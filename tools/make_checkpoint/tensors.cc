#include "tensors.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "gemma/tensors.h"
#include "towers.h"

namespace nibble::make_checkpoint {
namespace {

constexpr float kNormDeviation = 0.1F;

// Deviation 1 / sqrt(inputs): what is multiplied by it keeps its size.
float KeepingSize(int64_t n_inputs) { return 1 / std::sqrt(static_cast<float>(n_inputs)); }

Fill TextFill(const gemma::Config& config, const gemma::TensorSpec& spec) {
  switch (spec.role) {
    case gemma::Role::kPleEmbedding:  // rows are read P at a time
      return {.on_grid = true, .deviation = KeepingSize(config.ple_width)};
    case gemma::Role::kTokenEmbedding:
    case gemma::Role::kLmHead:
    case gemma::Role::kLinear:
    case gemma::Role::kExpertBank:
      return {.on_grid = true, .deviation = KeepingSize(spec.shape.back())};
    case gemma::Role::kPlain:
      break;
  }
  if (spec.name.ends_with("router.proj.weight")) return {.deviation = 1};  // experts differ
  if (spec.name.ends_with("layer_scalar")) return {.mean = 0.8F, .deviation = 0.05F};
  if (spec.name.ends_with("q_norm.weight") || spec.name.ends_with("k_norm.weight")) {
    // Attention is not scaled by head_dim^-0.5: these norms keep its logits near 1.
    const float mean = std::sqrt(KeepingSize(spec.shape.back()));
    return {.mean = mean, .deviation = mean * kNormDeviation};
  }
  return {.mean = 1, .deviation = kNormDeviation};
}

std::string SourceName(const gemma::Config& config, const std::string& canonical) {
  constexpr std::string_view kModel = "model.";
  if (config.layout == gemma::Layout::kTextOnly || !canonical.starts_with(kModel)) return canonical;
  return fmt::format("model.language_model.{}", canonical.substr(kModel.size()));
}

// The K/V tensors of layers that own theirs, renamed for each layer that shares them.
std::vector<gemma::TensorSpec> SharedKv(const gemma::Config& config,
                                        const std::vector<gemma::TensorSpec>& specs) {
  std::vector<gemma::TensorSpec> result;
  for (int i = config.first_shared_layer(); i < config.n_layers(); ++i) {
    const int owner = config.layers[i].kv_owner_layer;
    const std::string prefix = fmt::format("model.layers.{}.", owner);
    for (const gemma::TensorSpec& spec : specs) {
      if (spec.layer_idx != owner) continue;
      gemma::TensorSpec copy = spec;
      copy.name = fmt::format("model.layers.{}.{}", i, spec.name.substr(prefix.size()));
      if (gemma::IsIgnoredLeftover(config, copy.name)) result.push_back(std::move(copy));
    }
  }
  return result;
}

Fill TowerFill(const TowerTensor& tensor) {
  const std::string_view name = tensor.name;
  if (name.ends_with("_min")) return {.mean = -20, .deviation = 1};  // bounds of clipped linears
  if (name.ends_with("_max")) return {.mean = 20, .deviation = 1};
  if (name.ends_with("bias") || name.contains("pos")) return {.deviation = 0.02F};
  if (tensor.shape.size() == 1) return {.mean = 1, .deviation = kNormDeviation};
  const int64_t n_inputs = std::accumulate(tensor.shape.begin() + 1, tensor.shape.end(), int64_t{1},
                                           std::multiplies<>());
  return {.deviation = KeepingSize(n_inputs)};
}

}  // namespace

int64_t Tensor::n_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<Tensor> AllTensors(const gemma::Config& config, bool shared_kv) {
  std::vector<gemma::TensorSpec> specs = gemma::ExpectedTensors(config);
  if (shared_kv) {
    for (gemma::TensorSpec& spec : SharedKv(config, specs)) specs.push_back(std::move(spec));
  }
  std::vector<Tensor> tensors;
  for (gemma::TensorSpec& spec : specs) {
    tensors.push_back({.name = SourceName(config, spec.name),
                       .shape = spec.shape,
                       .fill = TextFill(config, spec)});
  }
  for (TowerTensor& tower : TowerTensors(config)) {
    const Fill fill = TowerFill(tower);
    tensors.push_back(
        {.name = std::move(tower.name), .shape = std::move(tower.shape), .fill = fill});
  }
  return tensors;
}

}  // namespace nibble::make_checkpoint
