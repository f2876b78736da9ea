// Names and shapes of the tensors outside the text model: vision and audio towers (E2B, E4B), the
// large vision tower (26B, 31B), the unified model's embedders (12B).
//
// Source: transformers, models/gemma4/modeling_gemma4.py and models/gemma4_unified; the 12B names
// are those before its conversion_mapping. Tested by tests/interop/test_make_checkpoint.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gemma/config.h"

namespace nibble::make_checkpoint {

struct TowerTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// Sizes are read from vision_config and audio_config; empty for a text-only config.
std::vector<TowerTensor> TowerTensors(const gemma::Config& config);

}  // namespace nibble::make_checkpoint
