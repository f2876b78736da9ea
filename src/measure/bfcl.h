// The matching rules of the Berkeley Function Calling Leaderboard for one call of one Python
// function, as its own checker applies them (bfcl_eval/eval_checker/ast_eval/ast_checker.py,
// simple_function_checker), Python's notion of types and equality included. Tested by
// suites_test.cc and tests/interop/test_bfcl.py against that checker.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "measure/target.h"

namespace nibble::measure {

// Why the calls are wrong; "" if they are right. function: the record's, as the leaderboard writes
// it; answer: its possible answers, {name: {parameter: [accepted value, ...]}}.
std::string CallFault(const Json& function, const Json& answer, const std::vector<ToolCall>& calls);

// The function as one of OpenAI's tools: dots in its name become underscores, types JSON Schema's.
Json ToTool(const Json& function);

}  // namespace nibble::measure
