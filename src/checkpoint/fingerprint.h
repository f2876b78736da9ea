// A digest that tells two sets of weights apart without reading them whole: SHA-256 of every
// tensor's name, type, shape and first bytes, in the order of the names. Runs and repacks record
// it, so that a comparison can say whether a build was made from the reference. It proves nothing
// about damage further inside a tensor. Tested by checkpoint_test.cc.
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_file.h"

namespace nibble::checkpoint {

std::string Fingerprint(const Checkpoint& checkpoint);
std::string Fingerprint(const GgufFile& file);

}  // namespace nibble::checkpoint
