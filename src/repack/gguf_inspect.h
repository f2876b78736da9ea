// The anatomy of a GGUF file, of a text model or of its towers. Tested by gguf_export_test.cc and
// tests/interop/test_gguf.py.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "repack/inspect.h"

namespace nibble::repack {

// Parts, their types and bytes; without a grid. Tensors of no known name, the rope factors among
// them, are "other".
Result<Anatomy> InspectGguf(const std::filesystem::path& path);

}  // namespace nibble::repack
