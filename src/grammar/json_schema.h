// A JSON Schema as a program: what it generates are documents that the schema accepts.
//
// Understood: type (one or several), properties, required, additionalProperties, items,
// prefixItems, minItems, maxItems, minLength, maxLength, pattern, format (formats.h), enum,
// const, minimum, maximum and their exclusive forms (whole numbers), anyOf, oneOf (as anyOf), allOf
// of one, $ref within the document, recursion. Other keywords that restrict are refused by name;
// those that do not are ignored. Narrower than the schema where a choice must be made: properties
// come in the schema's order, and none beside them unless additionalProperties says so; values of
// enum and const are written without blanks. Tested by json_schema_test.cc and
// tests/interop/test_grammar.py (against jsonschema).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/result.h"
#include "grammar/json_rules.h"
#include "grammar/program.h"

namespace nibble::grammar {

// Errors: no JSON, or what is wrong with it or not supported, with its place as a JSON pointer.
Result<Program> CompileJsonSchema(std::string_view schema);

// The same as a new rule of a larger program, in the notation of `rules`. The schema must be no
// deeper than ParseJson() allows.
Result<RuleId> AddSchema(ProgramBuilder& builder, JsonRules& rules,
                         const nlohmann::ordered_json& schema);

}  // namespace nibble::grammar
