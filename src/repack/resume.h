// What an interrupted repack leaves for the next one to go on with: what it was making, and what it
// had found in the tensors of the shards that it finished. Tested by resume_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <span>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "repack/pack_slice.h"
#include "repack/plan.h"

namespace nibble::repack {

// Equal for runs that would write the same bytes: all options that shape the output, and the
// source: config.json's digest, each shard's name, size, time of last change and header's digest.
Result<Json> WhatIsMade(const checkpoint::Checkpoint& source, const std::string& config_sha256,
                        const Options& options);

// Error, with advice, unless an interrupted run made what is to be made now: the first difference.
Status CheckMade(const std::filesystem::path& left, const Json& there, const Json& now);
// The error of a run that finds `left` and is not to go on with it.
std::unexpected<Error> LeftByInterruptedRun(const std::filesystem::path& left);
// Said before the work instead of at its end. A file system that tells no sizes is trusted.
Status CheckRoom(const std::filesystem::path& dir, uint64_t n_bytes);

// The counts of a shard's tensors in order, every field to the last bit.
Json CountsToJson(std::span<const PackCounts> counts);
// Error: not as many, or not what CountsToJson() wrote.
Status CountsFromJson(const Json& json, std::span<PackCounts> counts);

}  // namespace nibble::repack
