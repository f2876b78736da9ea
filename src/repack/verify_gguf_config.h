// The architecture that a GGUF file states, compared with a config. Part of verify: shares no code
// with the export. Tested by gguf_export_test.cc.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/gguf_file.h"
#include "gemma/config.h"

namespace nibble::repack {

// One line for each key or rope factor that says something else, or nothing.
std::vector<std::string> GgufConfigFaults(const checkpoint::GgufFile& file,
                                          const gemma::Config& config);

}  // namespace nibble::repack
