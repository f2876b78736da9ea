// The ids that end generation for a model directory. Tested by stop_tokens_test.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"

namespace nibble::engine {

// eos_token_id (a number or a list) of generation_config.json and of config.json with its
// text_config, ascending, each once. Errors: a file that is no JSON, an id that is no number.
Result<std::vector<int32_t>> ReadStopTokens(const std::filesystem::path& dir);

}  // namespace nibble::engine
