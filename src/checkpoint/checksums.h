// SHA256SUMS: whether a model's files are still what was written, so that a damaged download is not
// taken for a bad model. Tested by checksums_test.cc.
#pragma once

#include <filesystem>

#include "base/result.h"

namespace nibble::checkpoint {

// Hashes every file that DIR/SHA256SUMS lists (the format of sha256sum); nothing to do without one.
// Errors name the file that is missing or differs, and lines that are not of that format.
Status CheckSha256Sums(const std::filesystem::path& dir);

}  // namespace nibble::checkpoint
