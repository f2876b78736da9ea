#include "repack/verify_gguf_towers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/float16.h"
#include "base/mapped_file.h"
#include "gemma/tensors.h"

namespace nibble::repack {
namespace {

using checkpoint::Checkpoint;
using checkpoint::GgmlType;
using checkpoint::GgufFile;
using checkpoint::GgufTensor;
using checkpoint::Tensor;
using Names = std::map<std::string, std::string, std::less<>>;

// llama.cpp's names of modules -> the source's, below "v.blk.N." and "a.blk.N.".
const Names& VisionModules() {
  static const Names kNames = {
      {"attn_q", "self_attn.q_proj"},       {"attn_k", "self_attn.k_proj"},
      {"attn_v", "self_attn.v_proj"},       {"attn_out", "self_attn.o_proj"},
      {"attn_q_norm", "self_attn.q_norm"},  {"attn_k_norm", "self_attn.k_norm"},
      {"ln1", "input_layernorm"},           {"attn_post_norm", "post_attention_layernorm"},
      {"ln2", "pre_feedforward_layernorm"}, {"ffn_post_norm", "post_feedforward_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},        {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"}};
  return kNames;
}

const Names& AudioModules() {
  static const Names kNames = {{"attn_q", "self_attn.q_proj"},
                               {"attn_k", "self_attn.k_proj"},
                               {"attn_v", "self_attn.v_proj"},
                               {"attn_out", "self_attn.post"},
                               {"attn_k_rel", "self_attn.relative_k_proj"},
                               {"per_dim_scale", "self_attn.per_dim_scale"},
                               {"attn_pre_norm", "norm_pre_attn"},
                               {"attn_post_norm", "norm_post_attn"},
                               {"ln2", "norm_out"},
                               {"ffn_norm", "feed_forward1.pre_layer_norm"},
                               {"ffn_up", "feed_forward1.ffw_layer_1"},
                               {"ffn_down", "feed_forward1.ffw_layer_2"},
                               {"ffn_post_norm", "feed_forward1.post_layer_norm"},
                               {"ffn_norm_1", "feed_forward2.pre_layer_norm"},
                               {"ffn_up_1", "feed_forward2.ffw_layer_1"},
                               {"ffn_down_1", "feed_forward2.ffw_layer_2"},
                               {"ffn_post_norm_1", "feed_forward2.post_layer_norm"},
                               {"conv_pw1", "lconv1d.linear_start"},
                               {"conv_dw", "lconv1d.depthwise_conv1d"},
                               {"conv_pw2", "lconv1d.linear_end"},
                               {"conv_norm", "lconv1d.pre_layer_norm"},  // these two change places
                               {"norm_conv", "lconv1d.conv_norm"}};
  return kNames;
}

// Modules outside of layers; the unified model's where it has other ones.
const Names& OuterModules(bool is_unified) {
  static const Names kTowers = {
      {"v.patch_embd", "vision_tower.patch_embedder.input_proj"},
      {"v.position_embd", "vision_tower.patch_embedder.position_embedding_table"},
      {"a.conv1d.0", "audio_tower.subsample_conv_projection.layer0.conv"},
      {"a.conv1d.1", "audio_tower.subsample_conv_projection.layer1.conv"},
      {"a.conv1d.0.norm", "audio_tower.subsample_conv_projection.layer0.norm"},
      {"a.conv1d.1.norm", "audio_tower.subsample_conv_projection.layer1.norm"},
      {"a.input_projection", "audio_tower.subsample_conv_projection.input_proj_linear"},
      {"a.pre_encode.out", "audio_tower.output_proj"},
      {"mm.input_projection", "embed_vision.embedding_projection"},
      {"mm.a.input_projection", "embed_audio.embedding_projection"}};
  static const Names kUnified = {{"v.patch_embd", "vision_embedder.patch_dense"},
                                 {"v.position_embd", "vision_embedder.pos_embedding"},
                                 {"v.patch_norm.1", "vision_embedder.patch_ln1"},
                                 {"v.patch_norm.2", "vision_embedder.patch_ln2"},
                                 {"v.patch_norm.3", "vision_embedder.pos_norm"},
                                 {"mm.input_projection", "embed_vision.embedding_projection"},
                                 {"mm.a.input_projection", "embed_audio.embedding_projection"}};
  return is_unified ? kUnified : kTowers;
}

// The source's module of "v.blk.3.attn_q", below "model."; nothing if there is none.
std::optional<std::string> ModuleOf(std::string_view module, bool is_unified) {
  for (const auto& [block, tower, names] :
       {std::tuple("v.blk.", "vision_tower.encoder", &VisionModules()),
        std::tuple("a.blk.", "audio_tower", &AudioModules())}) {
    if (is_unified || !module.starts_with(block)) continue;
    const std::string_view rest = module.substr(std::string_view(block).size());
    const size_t dot = rest.find('.');
    const auto found =
        dot == std::string_view::npos ? names->end() : names->find(rest.substr(dot + 1));
    if (found == names->end()) return std::nullopt;
    return fmt::format("{}.layers.{}.{}", tower, rest.substr(0, dot), found->second);
  }
  const auto found = OuterModules(is_unified).find(module);
  if (found == OuterModules(is_unified).end()) return std::nullopt;
  return found->second;
}

const Tensor* FindSource(const Checkpoint& source, const std::string& name, bool is_unified) {
  if (name == "v.std_bias" || name == "v.std_scale") {
    return source.Find("model.vision_tower." + name.substr(2));
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return nullptr;
  const auto module = ModuleOf(std::string_view(name).substr(0, dot), is_unified);
  if (!module.has_value()) return nullptr;
  const std::string suffix = name.substr(dot);
  // As a linear that may clip, as any other module, and as a parameter without a module.
  for (const std::string& end : {".linear" + suffix, suffix, std::string()}) {
    if (!end.empty() || suffix == ".weight") {
      const Tensor* const tensor = source.Find("model." + *module + end);
      if (tensor != nullptr) return tensor;
    }
  }
  return nullptr;
}

// The source's values in the file's order: three nested loops over it.
struct Reading {
  std::array<int64_t, 3> extents = {};
  std::array<int64_t, 3> strides = {};
  std::vector<int64_t> shape;  // in the file, outermost first

  // Neither the loops nor the shape leave anything out.
  bool is_of_all(const Tensor& tensor) const {
    const auto product = [](const auto& values) {
      return std::accumulate(values.begin(), values.end(), int64_t{1}, std::multiplies<>());
    };
    const int64_t n_values = tensor.info.n_elements();
    return product(extents) == n_values && product(shape) == n_values;
  }
  bool is_in_order() const {
    return strides[2] == 1 && strides[1] == extents[2] && strides[0] == extents[1] * extents[2];
  }
};

Reading ReadingOf(const GgufTensor& written, const Tensor& tensor, bool is_unified) {
  std::vector<int64_t> shape = tensor.info.shape;
  const int64_t n_values = tensor.info.n_elements();
  Reading reading = {
      .extents = {1, 1, n_values}, .strides = {n_values, n_values, 1}, .shape = shape};
  const bool is_patch = written.name == "v.patch_embd.weight";
  const bool is_patch_norm = is_unified && written.name.starts_with("v.patch_norm.1.");
  if ((is_patch && shape.size() == 2) || (is_patch_norm && shape.size() == 1)) {
    // Pixels of three channels become three channels of pixels.
    const int64_t n_pixels = shape.back() / 3;
    reading.extents = {n_values / std::max<int64_t>(3 * n_pixels, 1), 3, n_pixels};
    reading.strides = {3 * n_pixels, 1, 3};
    const int64_t side = std::lround(std::sqrt(static_cast<double>(n_pixels)));
    if (is_patch && !is_unified) reading.shape = {shape[0], 3, side, side};
  } else if (is_unified && written.name == "v.position_embd.weight" && shape.size() == 3) {
    reading.extents = {shape[1], shape[0], shape[2]};
    reading.strides = {shape[2], shape[1] * shape[2], 1};
    reading.shape = {shape[1], shape[0], shape[2]};
  } else if (written.name.ends_with(".conv_dw.weight") && shape.size() == 3) {
    reading.shape = {shape[0], shape[2]};
  } else if (shape.empty()) {
    reading.shape = {1};
  }
  return reading;
}

std::optional<DType> FloatType(GgmlType type) {
  switch (type) {
    case GgmlType::kBF16:
      return DType::kBF16;
    case GgmlType::kF16:
      return DType::kF16;
    case GgmlType::kF32:
      return DType::kF32;
    default:
      return std::nullopt;
  }
}

float FloatAt(std::span<const std::byte> bytes, DType dtype, int64_t index) {
  const std::byte* const at = &bytes[static_cast<size_t>(index * SizeBytes(dtype))];
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == DType::kF16 ? Fp16ToFloat(bits) : Bf16ToFloat(bits);
}

bool AreSame(float expected, float found, bool is_computed) {
  if (!is_computed) return std::bit_cast<uint32_t>(expected) == std::bit_cast<uint32_t>(found);
  constexpr float kTwoSteps = 0x1p-22F;
  return std::fabs(found - expected) <= kTwoSteps * std::fabs(expected);
}

class TowerVerifier {
 public:
  TowerVerifier(const Checkpoint& source, const gemma::Config& config, const GgufFile& file)
      : source_(source),
        config_(config),
        file_(file),
        name_(std::filesystem::path(file.where()).filename().string()),
        is_unified_(config.layout == gemma::Layout::kUnified) {}

  TowersProof Run() {
    for (const GgufTensor& written : file_.header().tensors) {
      const Tensor* const tensor = FindSource(source_, written.name, is_unified_);
      if (tensor == nullptr) {
        Fault("{}: comes from no source tensor", QuoteForMessage(written.name));
        continue;
      }
      proof_.found_as[tensor->info.name] = checkpoint::InfoOf(written.type).name;
      Check(*tensor, written);
    }
    for (const Tensor& tensor : source_.tensors()) {
      const auto part = gemma::PartOf(tensor.info.name);
      const bool is_tower = part == gemma::Part::kVision || part == gemma::Part::kAudio;
      if (!is_tower || proof_.found_as.contains(tensor.info.name)) continue;
      Fault("{}: missing in the file", tensor.info.name);
    }
    CheckMetadata();
    return std::move(proof_);
  }

 private:
  template <typename... Args>
  void Fault(fmt::format_string<Args...> format, Args&&... args) {
    proof_.faults.push_back(
        fmt::format("{}: {}", name_, fmt::format(format, std::forward<Args>(args)...)));
  }

  void Check(const Tensor& tensor, const GgufTensor& written) {
    const Reading reading = ReadingOf(written, tensor, is_unified_);
    if (!reading.is_of_all(tensor) ||
        !std::ranges::equal(written.dims.rbegin(), written.dims.rend(), reading.shape.begin(),
                            reading.shape.end())) {
      Fault("{}: expected dimensions of [{}] reversed, found [{}]", written.name,
            fmt::join(reading.shape, ", "), fmt::join(written.dims, ", "));
      return;
    }
    const DType dtype = tensor.info.dtype;
    const std::optional<DType> written_as = FloatType(written.type);
    if (!written_as || (dtype != DType::kBF16 && dtype != DType::kF16 && dtype != DType::kF32)) {
      Fault("{}: type {} of a source of {} cannot be verified", written.name,
            checkpoint::InfoOf(written.type).name, Name(dtype));
      return;
    }
    if (*written_as == dtype && reading.is_in_order() && !IsComputed(written)) {
      const auto at = FirstDifference(tensor.bytes, file_.Bytes(written));
      if (at.has_value()) {
        const int64_t index = static_cast<int64_t>(*at) / SizeBytes(dtype);
        Differ(written, index, FloatAt(tensor.bytes, dtype, index), dtype);
      }
      return;
    }
    Compare(tensor, written, reading, *written_as);
  }

  static bool IsComputed(const GgufTensor& written) {
    return written.name.ends_with(".per_dim_scale.weight");
  }

  void Compare(const Tensor& tensor, const GgufTensor& written, const Reading& reading,
               DType written_as) {
    const bool is_computed = IsComputed(written);
    const std::span<const std::byte> bytes = file_.Bytes(written);
    int64_t index = 0;
    for (int64_t i = 0; i < reading.extents[0]; ++i) {
      for (int64_t j = 0; j < reading.extents[1]; ++j) {
        for (int64_t k = 0; k < reading.extents[2]; ++k, ++index) {
          const int64_t from =
              i * reading.strides[0] + j * reading.strides[1] + k * reading.strides[2];
          float expected = FloatAt(tensor.bytes, tensor.info.dtype, from);
          if (is_computed) expected = static_cast<float>(std::log1p(std::exp(double{expected})));
          if (AreSame(expected, FloatAt(bytes, written_as, index), is_computed)) continue;
          return Differ(written, index, expected, written_as);
        }
      }
    }
    ReleasePages(tensor.bytes);
    ReleasePages(bytes);
  }

  void Differ(const GgufTensor& written, int64_t index, float expected, DType written_as) {
    Fault("{}: value {}: expected {}, found {}", written.name, index, expected,
          FloatAt(file_.Bytes(written), written_as, index));
  }

  template <typename T>
  void Expect(const std::string& key, const T& expected) {
    const auto found = [&] {
      if constexpr (std::is_same_v<T, uint64_t>) {
        return GetGgufUnsigned(file_.header(), key, name_);
      } else {
        return checkpoint::GetGguf<T>(file_.header(), key, name_);
      }
    }();
    if (!found.has_value()) {
      proof_.faults.push_back(found.error().message);
    } else if (*found != expected) {
      Fault("key {}: expected {}, found {}", key, expected, *found);
    }
  }

  // A number of config.json; 0 where the unified model has no such thing.
  uint64_t Number(const char* tower, const char* key) const {
    const auto found = config_.json.find(tower);
    if (found == config_.json.end() || !found->is_object()) return 0;
    const auto value = found->find(key);
    return value != found->end() && value->is_number_unsigned() ? value->get<uint64_t>() : 0;
  }

  void CheckMetadata() {
    Expect<std::string>("general.architecture", "clip");
    CheckTower("vision", "vision_config", is_unified_ ? "gemma4uv" : "gemma4v",
               is_unified_ ? "mm_embed_dim" : "hidden_size");
    Expect("clip.vision.patch_size", Number("vision_config", "patch_size"));
    Expect("clip.vision.feed_forward_length", Number("vision_config", "intermediate_size"));
    CheckPixels();
    const auto audio = config_.json.find("audio_config");
    if (audio == config_.json.end() || !audio->is_object()) {
      if (file_.header().FindValue("clip.has_audio_encoder") != nullptr) {
        Expect("clip.has_audio_encoder", false);
      }
      return;
    }
    CheckTower("audio", "audio_config", is_unified_ ? "gemma4ua" : "gemma4a",
               is_unified_ ? "audio_embed_dim" : "hidden_size");
    Expect("clip.audio.num_mel_bins", uint64_t{128});
    Expect("clip.audio.feed_forward_length",
           is_unified_ ? 0 : 4 * Number("audio_config", "hidden_size"));
  }

  void CheckTower(const std::string& modality, const char* tower, const char* projector,
                  const char* width) {
    const std::string prefix = "clip." + modality + ".";
    Expect("clip.has_" + modality + "_encoder", true);
    Expect<std::string>(prefix + "projector_type", projector);
    Expect(prefix + "projection_dim", static_cast<uint64_t>(config_.hidden_size));
    Expect(prefix + "embedding_length", Number(tower, width));
    Expect(prefix + "block_count", Number(tower, "num_hidden_layers"));
    Expect(prefix + "attention.head_count", Number(tower, "num_attention_heads"));
    Expect(prefix + "attention.layer_norm_epsilon", 1e-6F);
  }

  // As a processor's file of the source says, or by default: values from 0 to 1, not moved.
  void CheckPixels() {
    Json processor = Json::object();
    for (const char* name : {"processor_config.json", "preprocessor_config.json"}) {
      const Result<Json> json = ReadJsonFile(source_.path() / name);
      if (!json.has_value() || !json->is_object()) continue;
      processor.update(*json);
      if (json->contains("image_processor") && (*json)["image_processor"].is_object()) {
        processor.update((*json)["image_processor"]);
        break;
      }
    }
    for (const auto& [key, absent] : {std::pair("image_mean", 0), std::pair("image_std", 1)}) {
      const Json expected = processor.value(key, Json({absent, absent, absent}));
      const std::string gguf_key = fmt::format("clip.vision.{}", key);
      const auto found = checkpoint::GetGgufArray<float>(file_.header(), gguf_key, name_);
      if (!found.has_value()) {
        proof_.faults.push_back(found.error().message);
      } else if (!std::ranges::equal(**found, expected, [](float value, const Json& json) {
                   return json.is_number() && json.get<float>() == value;
                 })) {
        Fault("key {}: expected {}, found [{}]", gguf_key, expected.dump(),
              fmt::join(**found, ", "));
      }
    }
  }

  const Checkpoint& source_;
  const gemma::Config& config_;
  const GgufFile& file_;
  std::string name_;
  bool is_unified_;
  TowersProof proof_;
};

}  // namespace

bool IsTowersFile(const GgufFile& file) {
  return checkpoint::GetGguf<std::string>(file.header(), "general.architecture", "") == "clip";
}

TowersProof ProveTowers(const Checkpoint& source, const gemma::Config& config,
                        const GgufFile& file) {
  return TowerVerifier(source, config, file).Run();
}

}  // namespace nibble::repack
