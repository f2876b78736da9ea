// Proof that a GGUF file of towers ("mmproj") stands for the towers of its source, whoever made it.
//
// Shares no code with the export: it goes from the file's names back to the source's, and reads the
// source in the order that llama.cpp wants. Values are the source's to the last bit, in whatever
// type of float; only those of per_dim_scale, which the file holds as log(1 + e^x), may be two
// float32 steps off. Metadata says what the source's configs say.
// Tested by gguf_export_test.cc and tests/interop/test_gguf_towers.py.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_file.h"
#include "gemma/config.h"

namespace nibble::repack {

// Whether a file holds towers, by its architecture.
bool IsTowersFile(const checkpoint::GgufFile& file);

struct TowersProof {
  std::map<std::string, std::string> found_as;  // a tower's tensor in the source -> its type here
  std::vector<std::string> faults;              // begin with the file's name
};

TowersProof ProveTowers(const checkpoint::Checkpoint& source, const gemma::Config& config,
                        const checkpoint::GgufFile& file);

}  // namespace nibble::repack
