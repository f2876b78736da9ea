// Regular expressions of JSON Schema's formats, as RFC 3339 and its like define them. A date's day
// is one that its month has in every year. Tested by json_schema_test.cc.
#pragma once

#include <string_view>

namespace nibble::grammar {

// "" for a format that is not known.
std::string_view ExpressionOfFormat(std::string_view name);

}  // namespace nibble::grammar
