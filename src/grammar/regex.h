// Regular expressions of JSON Schema and of guided_regex as parts of a program.
//
// Understood: characters, escapes (\d \w \s and their opposites, \n \t \r \f \v \0 \xHH \uHHHH, any
// punctuation), classes, ".", groups, "|", the quantifiers ? * + {m} {m,} {m,n}, lazy or not, and ^
// and $ at the ends. \d and \w are those of ASCII; \s and its opposite leave out what only some
// dialects call a space. Everything else is refused by name. Tested by regex_test.cc.
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/characters.h"
#include "grammar/program.h"

namespace nibble::grammar {

enum class Matching {
  kWhole,     // the text from its beginning to its end
  kSomewhere  // ^ and $ bind it to the ends: JSON Schema's pattern
};

// Errors: a fault in the expression, or something that is not supported, with its place.
Result<NodeId> AddRegex(ProgramBuilder& builder, NodeId from, std::string_view pattern,
                        Matching matching, Spelling spelling);

}  // namespace nibble::grammar
