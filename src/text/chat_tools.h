// Declarations of tools in Gemma 4's chat format. Tested by chat_test.cc.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace nibble::text {

// "declaration:NAME{...}" for one entry of OpenAI's "tools". `where` ("tools[0]") begins errors: no
// function or name, a schema whose parts have the wrong types.
Result<std::string> FormatDeclaration(const Json& tool, std::string_view where);

}  // namespace nibble::text
