// Gemma 4's chat format: messages in OpenAI's JSON shape rendered to the text that the model was
// trained on, byte for byte what the checkpoint's official chat template gives. Tested by
// chat_test.cc and tests/interop against jinja2 on the official template.
//
// Differences, where the template would print Python's spelling of a container, drop something
// silently, or fail in the middle: a system message given as a list of parts is the text of its
// parts; tool_calls whose arguments are a string holding a JSON object (as OpenAI's clients send
// them) are rendered like that object; a tool message whose content is an object is rendered as
// one; a tool message that follows no call is an error. Limits: keys that differ in case only are
// sorted by case, not by their order in the request; integers beyond 64 bits are rendered as
// floats.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace nibble::text {

struct ChatOptions {
  bool add_generation_prompt = true;
  bool enable_thinking = false;
  // Without thinking, the prompt for an answer ends in an empty thought: so the templates of the
  // larger models do, while those of the small ones (E2B, E4B) do not. See ClosesEmptyThought.
  bool closes_empty_thought = false;
};

// Whether the chat template that comes with a model (DIR/chat_template.jinja, or "chat_template" in
// DIR/tokenizer_config.json) asks for ChatOptions::closes_empty_thought. Error: there is none, or
// it is not one of Gemma 4's.
Result<bool> ClosesEmptyThought(const std::filesystem::path& model_dir);

// The same of a template's text; `where` begins the error message.
Result<bool> TemplateClosesEmptyThought(std::string_view source, std::string_view where);

// The text of that template.
Result<std::string> ReadChatTemplate(const std::filesystem::path& model_dir);

// messages: [{"role", "content", "tool_calls"?, "tool_call_id"?, "name"?, "reasoning"?,
// "reasoning_content"?, "tool_responses"?}], role one of system, developer, user, assistant, tool;
// tools: OpenAI's list of {"type": "function", "function": {...}}, or null. Begins with <bos>.
// Special tokens inside messages are passed on as they are. Errors: unknown role, wrong types,
// content other than text, tools or calls without a name, naming the index of the message or tool.
Result<std::string> RenderChat(const Json& messages, const Json& tools, const ChatOptions& options);

}  // namespace nibble::text
