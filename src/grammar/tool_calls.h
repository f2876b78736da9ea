// Calls of tools as Gemma 4 writes them, as a program: <|tool_call>call:NAME{...}<tool_call|>, with
// the arguments that the tool's schema allows (json_schema.h), in the order in which the chat
// format shows its parameters: the alphabet's. A tool whose schema names no parameter takes none,
// unless it has additionalProperties. Tested by tool_calls_test.cc and
// tests/interop/test_serve_tools.py.
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/program.h"

namespace nibble::grammar {

// `tools`: a JSON list of objects with a "name" and, if there are any, "parameters". Errors name
// the tool, and the place in its schema.
Result<Program> CompileToolCalls(std::string_view tools, bool allows_several);

}  // namespace nibble::grammar
