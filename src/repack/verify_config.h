// Is a packed checkpoint's config.json that of its source, and consistent with its tensors, as a
// loader will match them?
// Every module with packed tensors must be a target and not ignored, every plain linear ignored,
// under the names of Hugging Face and of vLLM. Shares no code with output_config.h.
// Tested by tests/interop/test_cli_repack.py.
#pragma once

#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace nibble::repack {

inline constexpr std::string_view kWeightSuffix = ".weight";

// The two config.json files and the output's tensors. The error names key and module.
Status CheckConfig(const Json& source_config, const Json& config,
                   const checkpoint::Checkpoint& output);

}  // namespace nibble::repack
