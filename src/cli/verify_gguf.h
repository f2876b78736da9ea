// What `nibble verify SRC OUT.gguf` does and prints. Tested by tests/interop/test_gguf.py.
#pragma once

#include <filesystem>

#include "base/result.h"

namespace nibble::cli {

Result<int> RunVerifyGguf(const std::filesystem::path& source, const std::filesystem::path& out,
                          int n_threads, bool as_json);

}  // namespace nibble::cli
