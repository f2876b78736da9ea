// JSON from files and headers that we do not trust: parsed by nlohmann-json, with duplicate keys,
// excessive depth and trailing bytes refused instead of resolved silently. Parsing stops at the
// first fault. Tested by json_test.cc.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace nibble {

using Json = nlohmann::json;

// Deeper nesting than any checkpoint file has; bounds the memory that brackets can cost.
inline constexpr int kMaxJsonDepth = 64;

// Parses `text`; `where` (a file name, say) begins the error message.
Result<Json> ParseJson(std::string_view text, std::string_view where);

// Reads and parses a whole file.
Result<Json> ReadJsonFile(const std::filesystem::path& path);

// Untrusted text (a tensor's name, say) in double quotes for an error message: line breaks escaped,
// invalid UTF-8 replaced, long text cut.
std::string QuoteForMessage(std::string_view text);

}  // namespace nibble
