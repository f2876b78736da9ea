#include "gemma/footprint.h"

#include <algorithm>
#include <span>
#include <string>

#include "base/check.h"

namespace nibble::gemma {
namespace {

constexpr int64_t kGroup = 32;
// Tokens of a prompt in one step, which a sliding layer holds beside its window. llama.cpp's
// default (--ubatch-size 512); nibble's own steps are shorter.
constexpr int64_t kStepTokens = 512;

enum class Storage { kFloat32, kBF16, kInt4, kInt8, kQ40 };

// How a tensor of a role is stored. Tables: the token table, the per-layer one and the head.
Storage StorageOf(Role role, WeightFormat format) {
  const bool is_gguf = format == WeightFormat::kGguf;
  switch (role) {
    case Role::kPlain:
      return is_gguf ? Storage::kFloat32 : Storage::kBF16;
    case Role::kLinear:
    case Role::kExpertBank:
      if (format == WeightFormat::kBF16) return Storage::kBF16;
      if (is_gguf) return Storage::kQ40;
      return format == WeightFormat::kW8A8 || format == WeightFormat::kW8A8Emb4 ? Storage::kInt8
                                                                                : Storage::kInt4;
    case Role::kTokenEmbedding:
    case Role::kPleEmbedding:
    case Role::kLmHead:
      if (is_gguf) return Storage::kQ40;
      return format == WeightFormat::kQ4W4A16Emb4 || format == WeightFormat::kW8A8Emb4
                 ? Storage::kInt4
                 : Storage::kBF16;
  }
  CHECK(false);
}

WeightBytes BytesOf(const TensorSpec& spec, WeightFormat format) {
  uint64_t n_values = 1;
  for (const int64_t extent : spec.shape) n_values *= static_cast<uint64_t>(extent);
  Storage storage = StorageOf(spec.role, format);
  const bool divides = spec.shape.back() % kGroup == 0;
  if (!divides && (storage == Storage::kInt4 || storage == Storage::kQ40)) {
    storage = Storage::kBF16;
  }
  switch (storage) {
    case Storage::kFloat32:
      return {.n_bytes = n_values * 4};
    case Storage::kBF16:
      return {.n_bytes = n_values * 2};
    case Storage::kInt4:
      return {.n_bytes = n_values / 2 + n_values / kGroup * 2, .n_int4_bytes = n_values / 2};
    case Storage::kInt8:
      return {.n_bytes = n_values + n_values / static_cast<uint64_t>(spec.shape.back()) * 4};
    case Storage::kQ40:
      return {.n_bytes = n_values / kGroup * 18, .n_int4_bytes = n_values / 2};
  }
  CHECK(false);
}

}  // namespace

std::string_view Name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kQ4W4A16:
      return "q4w4a16";
    case WeightFormat::kQ4W4A16Emb4:
      return "q4w4a16emb4";
    case WeightFormat::kW8A8:
      return "w8a8";
    case WeightFormat::kW8A8Emb4:
      return "w8a8emb4";
    case WeightFormat::kGguf:
      return "gguf";
  }
  CHECK(false);
}

WeightBytes TextWeightBytes(const Config& config, WeightFormat format) {
  WeightBytes total;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    WeightBytes bytes = BytesOf(spec, format);
    // Loaders refuse a head tied to a packed table, so it stands in the file twice.
    const bool is_repeated = spec.role == Role::kTokenEmbedding && config.tie_word_embeddings &&
                             StorageOf(spec.role, format) == Storage::kInt4;
    if (is_repeated) total.Add(bytes);
    const bool has_head = is_repeated || !config.tie_word_embeddings;
    if (spec.role == Role::kPleEmbedding || (spec.role == Role::kTokenEmbedding && has_head)) {
      bytes.n_lookup_bytes = bytes.n_bytes;
    }
    total.Add(bytes);
  }
  return total;
}

WeightBytes StoredBytes(const checkpoint::Checkpoint& checkpoint) {
  WeightBytes total{.n_bytes = checkpoint.size_bytes()};
  uint64_t head_bytes = 0;
  for (const checkpoint::Tensor& tensor : checkpoint.tensors()) {
    const std::string name = TextName(tensor.info.name).value_or("");
    const uint64_t size_bytes = tensor.info.size_bytes;
    if (name.ends_with("_packed")) total.n_int4_bytes += size_bytes;
    if (name.starts_with("model.embed_tokens_per_layer.")) total.n_lookup_bytes += size_bytes;
    if (name.starts_with("lm_head.")) head_bytes += size_bytes;
  }
  total.n_lookup_bytes += head_bytes;  // the token table takes as much
  return total;
}

WeightBytes StoredBytes(const checkpoint::GgufHeader& file) {
  WeightBytes total;
  for (const checkpoint::GgufTensor& tensor : file.tensors) {
    total.n_bytes += tensor.size_bytes;
    if (tensor.type == checkpoint::GgmlType::kQ40)
      total.n_int4_bytes += tensor.size_bytes / 18 * 16;
    const bool has_head = file.FindTensor("output.weight") != nullptr;
    if (tensor.name == "per_layer_token_embd.weight" ||
        (tensor.name == "token_embd.weight" && has_head)) {
      total.n_lookup_bytes += tensor.size_bytes;
    }
  }
  return total;
}

uint64_t StepBytes(const Config& config, int64_t n_tokens) {
  int64_t widest = 0;
  // Only rows whose logits are wanted pass through the layers after those.
  for (const LayerConfig& layer : std::span(config.layers).first(config.first_shared_layer())) {
    const int64_t heads = int64_t{2} * (config.n_heads + layer.n_kv_heads) * layer.head_dim;
    widest = std::max(widest, heads + int64_t{2} * layer.mlp_width);
  }
  const int64_t ple = int64_t{config.n_layers()} * config.ple_width;
  const int64_t row = ple + int64_t{4} * config.hidden_size + widest;
  return static_cast<uint64_t>((n_tokens * row + config.vocab_size) * int64_t{sizeof(float)});
}

uint64_t StoredTowerBytes(const checkpoint::Checkpoint& checkpoint) {
  uint64_t n_bytes = 0;
  for (const checkpoint::Tensor& tensor : checkpoint.tensors()) {
    const std::optional<Part> part = PartOf(tensor.info.name);
    if (part == Part::kAudio || part == Part::kVision) n_bytes += tensor.info.size_bytes;
  }
  return n_bytes;
}

bool IsUnpacked(const checkpoint::Checkpoint& checkpoint) {
  return std::ranges::none_of(checkpoint.tensors(), [](const checkpoint::Tensor& tensor) {
    return tensor.info.name.ends_with("_packed") || tensor.info.dtype == DType::kI8;
  });
}

uint64_t KvFootprint::WindowedBytes(int64_t n_tokens) const {
  const int64_t n_sliding = window_tokens > 0 ? std::min(n_tokens, window_tokens) : n_tokens;
  return full_bytes_per_token * static_cast<uint64_t>(n_tokens) +
         sliding_bytes_per_token * static_cast<uint64_t>(n_sliding);
}

uint64_t KvFootprint::FullLengthBytes(int64_t n_tokens) const {
  return (full_bytes_per_token + sliding_bytes_per_token) * static_cast<uint64_t>(n_tokens);
}

KvFootprint KvOf(const Config& config, int value_bytes) {
  KvFootprint kv{.window_tokens =
                     config.sliding_window > 0 ? config.sliding_window + kStepTokens : 0};
  for (int i = 0; i < config.n_layers(); ++i) {
    if (!config.OwnsKv(i)) continue;
    const LayerConfig& layer = config.layers[i];
    // K and V both, also where V is computed from K's projection (k_eq_v): they differ in the
    // cache.
    const auto bytes =
        static_cast<uint64_t>(int64_t{2} * layer.n_kv_heads * layer.head_dim * value_bytes);
    (layer.is_sliding ? kv.sliding_bytes_per_token : kv.full_bytes_per_token) += bytes;
  }
  return kv;
}

}  // namespace nibble::gemma
