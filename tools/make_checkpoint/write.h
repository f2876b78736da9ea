// Writes a checkpoint's shards and their index, in bounded memory: one buffer, filled by all
// threads and then appended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "base/progress.h"
#include "base/result.h"
#include "tensors.h"
#include "values.h"

namespace nibble::make_checkpoint {

struct Written {
  uint64_t file_bytes = 0;  // headers included
  size_t n_shards = 0;
};

// Hugging Face's layout: tensors in order, a new shard where the next one would pass `shard_bytes`
// (a larger tensor has a shard of its own); model.safetensors if one suffices, else
// model-00001-of-0000N.safetensors and model.safetensors.index.json. Without `values` the files are
// holes behind their headers.
Result<Written> WriteShards(const std::filesystem::path& dir, std::span<const Tensor> tensors,
                            const Values* values, uint64_t shard_bytes, int n_threads,
                            const ProgressFn& progress);

}  // namespace nibble::make_checkpoint
