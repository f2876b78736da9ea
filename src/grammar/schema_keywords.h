// What the keywords of one schema say: read, checked, refused by name.
//
// Errors name the schema's place as a JSON pointer. Tested by json_schema_test.cc.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "grammar/json_rules.h"

namespace nibble::grammar {

using Schema = nlohmann::ordered_json;  // properties keep their order

// Fail(...) with the place in front.
template <typename... Args>
std::unexpected<Error> At(const std::string& pointer, fmt::format_string<Args...> format,
                          Args&&... args) {
  return Fail("schema {}: {}", QuoteForMessage(pointer),
              fmt::format(format, std::forward<Args>(args)...));
}

// A name as a part of a JSON pointer.
std::string Escaped(std::string_view name);

// Keywords that restrict and that nothing here implements.
Status RefuseUnsupported(const Schema& schema, const std::string& pointer);
// Other keywords that would have to hold as well as `keyword`.
Status RefuseBeside(const Schema& schema, const std::string& pointer, std::string_view keyword);

// Whether a value is of a type by JSON Schema's name.
bool HasType(const Schema& value, const std::string& type);
// The types that it names; without any, those that its keywords are about.
Result<std::vector<std::string>> TypesOf(const Schema& schema, const std::string& pointer);
// A count such as minItems.
Result<int64_t> Count(const Schema& schema, const char* keyword, int64_t otherwise,
                      const std::string& pointer);
// One end of a range of numbers; none if it is open.
Result<std::optional<Bound>> ReadBound(const Schema& schema, bool is_low, bool is_integer,
                                       const std::string& pointer);

}  // namespace nibble::grammar
