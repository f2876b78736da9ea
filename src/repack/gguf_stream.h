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

// A file to be written. Its report lists the tensors, with nothing counted yet.
struct LaidOutGguf {
  std::filesystem::path path;
  checkpoint::GgufLayout layout;
  GgufReport report;
};

// Writes the towers' file, if there is one (else null), and then the text model's, or what an
// interrupted run of the same `made` has not written; fills the reports' counts, totals and
// digests. An error of the input discards both; any other leaves what a later run can go on with.
Status WriteGguf(const Json& made, const gemma::Config& config, const ProgressFn& progress,
                 LaidOutGguf* towers, LaidOutGguf* text);

}  // namespace nibble::repack
