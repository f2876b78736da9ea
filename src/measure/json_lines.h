// JSONL: a JSON value a line, empty lines left out. Tested by suites_test.cc.
#pragma once

#include <filesystem>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace nibble::measure {

// Error: names file and line.
Result<std::vector<Json>> ReadJsonLines(const std::filesystem::path& path);

}  // namespace nibble::measure
