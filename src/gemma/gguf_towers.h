// The vision and audio towers of Gemma 4 as llama.cpp's second file ("mmproj", architecture "clip")
// spells them: tensor names, types, layouts, and the config in metadata keys.
//
// Matrices keep the source's type and bytes. Float32 is what llama.cpp demands so: tensors of one
// dimension (norms, biases, the bounds input_min .. output_max of clipped linears), the patch
// embedding, position tables, the audio tower's convolutions and the projection after them. What
// changes beside types is TowerChange. Nothing is added to norms.
// Source: llama.cpp, conversion/gemma.py (Gemma4VisionAudioModel, Gemma4UnifiedVisionAudioModel),
// gguf-py/gguf/tensor_mapping.py (names), tools/mtmd/clip.cpp and models/gemma4*.cpp (what is read,
// and which facts of a config are fixed there).
// Tested by gguf_towers_test.cc, and by tests/interop/test_gguf_towers.py against that converter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "checkpoint/safetensors.h"
#include "gemma/config.h"
#include "gemma/tensors.h"

namespace nibble::gemma {

enum class TowerChange {
  kNone,
  kSoftplus,       // log(1 + e^x) of each value; here [C] per_dim_scale
  kDropMiddle,     // [D, 1, K] -> [D, K]
  kChannelsFirst,  // each row [P, P, 3] -> [3, P, P], its shape left as it is
  kPatchKernel,    // the same as dimensions: [D, P * P * 3] -> [D, 3, P, P]
  kAxesFirst,      // [positions, 2, D] -> [2, positions, D]
};

struct TowerSpec {
  std::string source;  // "model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight"
  std::string name;    // "v.blk.0.ffn_up.weight"
  TowerChange change = TowerChange::kNone;
  bool is_f32 = false;  // whatever its dimensions are
};

// Every tensor of the towers that the config describes, in forward order. Errors: there is no
// vision tower; a fact of the config that llama.cpp has fixed at another value.
Result<std::vector<TowerSpec>> ExpectedTowers(const Config& config);

// Name, type, dims and size of the spec's tensor, whose source is this. Error if its dtype is none
// of BF16, F16, F32, or its shape does not allow the change.
Result<checkpoint::GgufTensor> GgufTowerTensor(const TowerSpec& spec,
                                               const checkpoint::TensorInfo& source);

// The metadata that describes the towers: "general.architecture" and "clip.*", but how pixels are
// normalised. Errors as ExpectedTowers; a key that is missing or no number.
Result<std::vector<checkpoint::GgufEntry>> GgufTowerConfig(const Config& config);

// Bytes of all tensors of the towers' file; 0 if llama.cpp has no place for this model's towers.
uint64_t GgufTowerBytes(const Config& config, const checkpoint::Checkpoint& checkpoint);

// "DIR/gemma-4-E2B-it-Q4_0.gguf" -> "DIR/mmproj-gemma-4-E2B-it-BF16.gguf": beside the text model's
// file and named after it, without its type.
std::filesystem::path GgufTowersPath(const std::filesystem::path& text_file);

// The part that a tensor of such a file belongs to, by its name's beginning.
std::optional<Part> GgufTowerPart(std::string_view gguf_name);

}  // namespace nibble::gemma
