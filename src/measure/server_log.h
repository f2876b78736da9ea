// What vLLM prints of itself when it starts, and tells nowhere else. Tested by openai_test.cc.
#pragma once

#include <string_view>

#include "base/json.h"

namespace nibble::measure {

// "kv_tokens" from "GPU KV cache size: 519,568 tokens" (or "CPU KV cache size"), "weight_bytes"
// from "Model loading took 2.86 GiB". What the log does not say stays as it is.
void AddVllmLogFacts(std::string_view log, Json* facts);

}  // namespace nibble::measure
