// Streams a GGUF export's tensors into the file: the source is read ahead, encoded on all threads,
// written and hashed behind (output_file.h), and its pages are let go of.
// Tested by gguf_export_test.cc and tests/interop/test_scale.py.
#pragma once

#include <filesystem>

#include "base/json.h"
#include "base/progress.h"
#include "base/result.h"
#include "checkpoint/gguf.h"
#include "gemma/config.h"
#include "repack/gguf_export.h"

namespace nibble::repack {

// Writes the file that `layout` and the report's tensors describe, or what an interrupted run of
// the same `made` has not written; fills the report's counts, totals and digest. An error of the
// input discards the file; any other leaves what a later run can go on with.
Status WriteGguf(const std::filesystem::path& out, const Json& made,
                 const checkpoint::GgufLayout& layout, const gemma::Config& config,
                 const ProgressFn& progress, GgufReport* report);

}  // namespace nibble::repack
