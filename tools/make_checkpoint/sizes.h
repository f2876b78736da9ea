// The published sizes of Gemma 4 as config.json: the facts that differ between them, and everything
// else that the real files say.
//
// Source: the config.json files of the published checkpoints; checked by gemma::ParseConfig (the
// text part) and by tests/interop/test_make_checkpoint.py against transformers.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace nibble::make_checkpoint {

// Smaller than the real thing, for tests. Absent: as the real one.
struct Cuts {
  std::optional<int> n_layers;    // also the most that a tower keeps
  std::optional<int> vocab_size;  // rows of both tables
  std::optional<int> n_experts;
  bool text_only = false;  // Gemma4ForCausalLM, no towers
};

// "e2b", "e4b", ...
std::vector<std::string> SizeNames();

// config.json of a size in SizeNames().
//
// A cut keeps the kinds of layer: shared layers in proportion, full attention in the last layer
// that owns its KV and in the last of all. So KV sharing needs 4 layers. An impossible cut is an
// error.
Result<Json> MakeConfig(std::string_view size, const Cuts& cuts);

Json MakeGenerationConfig();

}  // namespace nibble::make_checkpoint
