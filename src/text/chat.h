// Gemma 4's chat format: messages in OpenAI's JSON shape rendered to the text that the model was
// trained on, byte for byte what the checkpoint's official chat template gives. Tested by
// chat_test.cc and tests/interop against jinja2 on the official template.
#pragma once

#include <string>

#include "base/json.h"
#include "base/result.h"

namespace nibble::text {

struct ChatOptions {
  bool add_generation_prompt = true;
  bool enable_thinking = false;
};

// messages: [{"role", "content", "tool_calls"?, "tool_call_id"?, "name"?, ...}]; tools: OpenAI's
// list of
// {"type": "function", "function": {...}}, or null. Begins with <bos>. Errors: unknown role, wrong
// types, non-text content, naming the message's index.
Result<std::string> RenderChat(const Json& messages, const Json& tools, const ChatOptions& options);

}  // namespace nibble::text
