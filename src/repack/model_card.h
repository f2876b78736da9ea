// The model card (README.md) of a repacked checkpoint: front matter as Hugging Face reads it, what
// was done, sizes before and after, how exact it is, how to load it; so that `hf upload` publishes
// the directory as it is. Says nothing that the source or the report does not: without a licence in
// the source's card there is none here. Tested by model_card_test.cc.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.h"
#include "repack/repack.h"

namespace nibble::repack {

// `source`: the directory that was repacked; its name, its card (if there is one) and its config
// are read. `report`: of the finished run.
std::string ModelCard(const std::filesystem::path& source, const Json& source_config,
                      const RepackReport& report);

}  // namespace nibble::repack
