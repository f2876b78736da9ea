// What a request says about tools: tools, tool_choice, parallel_tool_calls, and what calls must
// look like where it says that. Tested by generation_request_test.cc, structured_output_test.cc and
// tests/interop/test_serve_tools.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "server/request_fields.h"
#include "server/structured_output.h"

namespace nibble::server {

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

struct ToolUse {
  ToolChoice choice = ToolChoice::kNone;
  bool single_call = false;
  // Of calls, by the parameters of the tools: if the answer must be one, and for kAuto if a tool is
  // strict.
  std::optional<AnswerShape> calls = std::nullopt;

  bool is_forced() const { return choice == ToolChoice::kRequired || choice == ToolChoice::kNamed; }
};

// `body`: the whole request, as ReadAnswerShape() has it.
ToolUse ReadTools(RequestFields& fields, std::string_view body);

}  // namespace nibble::server
