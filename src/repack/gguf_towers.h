// The second file of a GGUF export: the towers, as llama.cpp loads them with --mmproj. What becomes
// of each tensor is in gemma/gguf_towers.h. Tested by gguf_export_test.cc and
// tests/interop/test_gguf_towers.py.
#pragma once

#include <filesystem>
#include <vector>

#include "base/result.h"
#include "checkpoint/gguf.h"
#include "gemma/config.h"
#include "repack/gguf_tensors.h"
#include "repack/plan.h"

namespace nibble::repack {

// One output for each tower's tensor that the plan copies, in its order. Errors: a tensor is
// missing or has no place; those of gemma::ExpectedTowers and gemma::GgufTowerTensor.
Result<std::vector<GgufOutput>> GgufTowerOutputs(const Plan& plan, const gemma::Config& config);

// The file's metadata about the towers: gemma::GgufTowerConfig, and how pixels are normalised, from
// processor_config.json or preprocessor_config.json of `source`, else as transformers does it.
Result<std::vector<checkpoint::GgufEntry>> GgufTowerMetadata(const std::filesystem::path& source,
                                                             const gemma::Config& config);

}  // namespace nibble::repack
