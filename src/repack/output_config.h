// The config.json of a packed checkpoint: the architecture that the output has, and the
// quantization_config that compressed-tensors' and vLLM's loaders match modules against.
// Tested by tests/interop/test_repack.py with compressed-tensors and transformers.
#pragma once

#include "base/json.h"
#include "gemma/config.h"
#include "repack/plan.h"

namespace nibble::repack {

// Text-only unless options.keep_towers: flat, Gemma4ForCausalLM. Every linear that stays unpacked
// is in "ignore" as Hugging Face and as vLLM spell it; no pattern there matches a packed one.
Json OutputConfig(const gemma::Config& config, const Plan& plan, const Options& options);

}  // namespace nibble::repack
