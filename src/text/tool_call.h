// A tool call as Gemma 4 writes it, read into OpenAI's form.
//
// call:NAME{key:value,...}: text stands between <|"|> marks and means itself, numbers, true, false
// and null (None) stand bare, [...] and {...} nest. A model that slips into JSON's or Python's
// spelling is understood too: "..." and '...' with escapes, quoted keys, key=value, bare words.
// Numbers keep their digits. Tested by tool_call_test.cc.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace nibble::text {

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object, keys in the order in which the model wrote them
};

// `call`: the text between <|tool_call> and <tool_call|>. Errors: what was expected, at which byte.
Result<ToolCall> ParseToolCall(std::string_view call);

}  // namespace nibble::text
