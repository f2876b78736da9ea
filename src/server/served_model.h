// A model that the server answers with: its text side, its defaults, its limits, and its engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "server/engine_thread.h"
#include "server/structured_output.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace nibble::server {

// Bytes of one part of the weights in one type, for those who look.
struct WeightPart {
  std::string part;
  std::string dtype;
  uint64_t n_bytes = 0;
};

struct ServedModel {
  std::vector<std::string> names = {};  // that requests may ask for; the first is the one reported
  int64_t created_s = 0;                // Unix time
  text::Tokenizer tokenizer;
  text::ChatOptions chat = {};     // enable_thinking: what a request gets that does not say
  engine::Sampling sampling = {};  // what generation_config.json says
  std::vector<int32_t> stop_ids = {};
  int64_t context_tokens = 0;
  int64_t n_token_ids = 0;
  std::vector<WeightPart> weights = {};
  std::unique_ptr<GrammarCache> grammars = nullptr;  // null: no structured output
  std::unique_ptr<EngineThread> engine = nullptr;
};

}  // namespace nibble::server
