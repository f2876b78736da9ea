// What `nibble repack --format gguf` does and prints. Tested by tests/interop/test_gguf.py.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "repack/gguf_export.h"

namespace nibble::cli {

Result<int> RunRepackGguf(const std::filesystem::path& source, const std::filesystem::path& out,
                          const repack::Options& options, repack::GgufTables tables, bool as_json);

}  // namespace nibble::cli
