// JSON values as Gemma 4's chat format writes them: strings between <|"|>, keys in alphabetical
// order, scalars as Python prints them (which the model saw in training). Tested by chat_test.cc.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"

namespace nibble::text {

inline constexpr std::string_view kQuote = "<|\"|>";

std::string Quoted(std::string_view text);

// `quote_keys`: keys of objects are quoted too, as in schemas; in calls and replies they are bare.
std::string FormatValue(const Json& value, bool quote_keys);

// The items of an object in the order of Jinja's dictsort: by key, ignoring case.
std::vector<std::pair<std::string_view, const Json*>> SortedItems(const Json& object);

// The member, or null if `value` is no object or lacks it.
const Json* Member(const Json& value, std::string_view key);

// Python's notion of it; a null pointer is false.
bool IsTruthy(const Json* value);

}  // namespace nibble::text
