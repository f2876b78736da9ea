// Gemma 4 as llama.cpp's GGUF files spell it: tensor names, and the config in metadata keys.
//
// Source: llama.cpp, src/models/gemma4.cpp (what is read) and gguf-py/gguf/constants.py (names).
// Tested by gguf_test.cc and tests/interop/test_gguf.py.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_file.h"
#include "gemma/config.h"

namespace nibble::gemma {

// The full-attention layers' rotation: a factor that divides each pair's frequency, 1 for pairs
// that turn and kStillPair for the rest. Float32 [head_dim / 2].
inline constexpr std::string_view kGgufRopeFactors = "rope_freqs.weight";
inline constexpr float kStillPair = 1e30F;

// "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight" and back, for the tensors of
// ExpectedTensors; nothing for any other name. Layouts are the same, dimensions in reverse order.
std::optional<std::string> GgufName(std::string_view canonical_name);
std::optional<std::string> CanonicalName(std::string_view gguf_name);

// The metadata that describes the architecture: "general.architecture" and "gemma4.*". Error if
// llama.cpp could not compute this model: it takes one head dim for each kind of layer, turns all
// pairs of sliding layers, lets KV-shared layers read the last layer of their kind that has KV only
// where those two stand last, and wants as many rows in both tables.
Result<std::vector<checkpoint::GgufEntry>> GgufConfig(const Config& config);

// The factors of kGgufRopeFactors for this config's full layers.
std::vector<float> GgufRopeFactors(const Config& config);

// The config of a GGUF file, from its metadata and, where that is silent, its tensors: a model
// without "output.weight" is tied, full layers without "attn_v" take their keys as values.
Result<Config> ConfigFromGguf(const checkpoint::GgufFile& file);

}  // namespace nibble::gemma
