// TARGET of `eval` and `bench`: a model that runs in this process, or a server by its URL.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "cli/engine_flags.h"
#include "measure/target.h"
#include "text/tokenizer.h"

namespace nibble::cli {

inline constexpr const char* kTargetHelp =
    "Model directory or .gguf file, or the URL of an OpenAI-compatible server";

bool IsUrl(const std::string& target);

struct OpenedTarget {
  OpenedModel model;  // empty for a server
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<measure::Target> target;
  // Who was asked: what a run that goes on must find again.
  Json identity;
  // What else is known: bytes and anatomy of the weights, load time.
  Json facts;
};

Result<OpenedTarget> OpenTarget(const EngineFlags& flags);

}  // namespace nibble::cli
