// How a model's makers want it sampled. Tested by service_test.cc.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "engine/sampler.h"

namespace nibble::server {

// temperature, top_k, top_p, min_p and repetition_penalty of DIR/generation_config.json; what it
// does not say, and all of it where there is no such file, is as in OpenAI's API: temperature 1 and
// nothing else. Errors: a file that is no JSON, a value that is no number.
Result<engine::Sampling> ReadDefaultSampling(const std::filesystem::path& dir);

}  // namespace nibble::server
