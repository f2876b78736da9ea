// What a client asks for, out of the bodies of /v1/chat/completions and /v1/completions: checked,
// rendered and tokenized. docs/SERVING.md has the table of fields. Tested by
// generation_request_test.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/served_model.h"
#include "server/tool_choice.h"
#include "text/answer_parser.h"

namespace nibble::server {

struct Prompt {
  std::vector<int32_t> ids;
  std::string text;
};

struct GenerationRequest {
  bool is_chat = true;
  std::string model;            // the name asked for, or the first one
  std::vector<Prompt> prompts;  // at least one; one in a chat
  int n = 1;                    // choices for each prompt
  bool stream = false;
  bool include_usage = false;

  engine::Request engine;  // of every choice, without the prompt; the seed is the first choice's
  std::vector<std::string> stop;
  bool echo = false;  // the prompt's text before the answer's
  std::function<std::shared_ptr<TokenConstraint>()> new_constraint;  // of a choice; null: free

  ToolChoice tool_choice = ToolChoice::kNone;
  text::AnswerFormat format = text::AnswerFormat::kPlain;
  bool single_call = false;
  bool include_reasoning = true;

  std::vector<std::string> ignored;  // names of fields without effect

  // Choices in all.
  int n_choices() const { return static_cast<int>(prompts.size()) * n; }
};

ApiResult<GenerationRequest> ParseChatRequest(std::string_view body, const ServedModel& model);
ApiResult<GenerationRequest> ParseCompletionRequest(std::string_view body,
                                                    const ServedModel& model);
// A chat if it has messages.
ApiResult<GenerationRequest> ParseInvocation(std::string_view body, const ServedModel& model);

// The prompt of a body of /tokenize: "prompt", or "messages" as a chat has them.
ApiResult<Prompt> ParseTokenize(std::string_view body, const ServedModel& model);
// The ids of a body of /detokenize.
ApiResult<std::vector<int32_t>> ParseDetokenize(std::string_view body, const ServedModel& model);

}  // namespace nibble::server
