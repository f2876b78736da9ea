// Every tensor of a checkpoint by its config: name as in the file, shape, how its values are drawn.
//
// The text part is gemma::ExpectedTensors; the towers are spelled here as transformers has them
// (models/gemma4 and models/gemma4_unified), with the 12B embedder's names as published files have
// them (model.vision_embedder.*). All bf16.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gemma/config.h"
#include "values.h"

namespace nibble::make_checkpoint {

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;  // empty: a scalar
  Fill fill;

  int64_t n_elements() const;
};

// shared_kv: also the K/V of layers that read other layers' KV, as older exports have them.
std::vector<Tensor> AllTensors(const gemma::Config& config, bool shared_kv);

}  // namespace nibble::make_checkpoint
