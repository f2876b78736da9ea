#include "repack/resume.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "base/mapped_file.h"
#include "base/sha256.h"

namespace nibble::repack {
namespace {

// Rises when the bytes that equal options give change.
constexpr int kOutputVersion = 1;

Result<Json> Identity(const MappedFile& shard) {
  struct stat info{};
  if (::stat(shard.path().c_str(), &info) != 0) {
    return Fail("{}: cannot stat: {}", shard.path().string(), std::strerror(errno));
  }
  uint64_t header_bytes = 0;  // little-endian; Checkpoint has checked it
  for (int i = 7; i >= 0; --i)
    header_bytes = header_bytes << 8 | static_cast<uint64_t>(shard.bytes()[i]);
  return Json{{"bytes", shard.bytes().size()},
              {"changed_ns", int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec},
              {"header_sha256", Sha256Hex(shard.bytes().first(8 + header_bytes))}};
}

// Every field by name, so that a new one does not compile until it stands here.
Json ToJson(const PackCounts& counts) {
  const auto& [n_groups, n_exact, n_nearest, n_off_grid, n_not_finite, n_zero, n_negative, n_values,
               n_inexact, n_sign_lost, worst_ulp, peaks] = counts.grid;
  const auto& [n_rounded, squares, squared_error, error, max_error] = counts.rounding;
  return {{n_groups, n_exact, n_nearest, n_off_grid, n_not_finite, n_zero, n_negative, n_values,
           n_inexact, n_sign_lost, worst_ulp, peaks},
          {n_rounded, squares, squared_error, error, max_error}};
}

void FromJson(const Json& json, PackCounts* counts) {
  auto& [n_groups, n_exact, n_nearest, n_off_grid, n_not_finite, n_zero, n_negative, n_values,
         n_inexact, n_sign_lost, worst_ulp, peaks] = counts->grid;
  auto& [n_rounded, squares, squared_error, error, max_error] = counts->rounding;
  size_t i = 0;
  for (uint64_t* field : {&n_groups, &n_exact, &n_nearest, &n_off_grid, &n_not_finite, &n_zero,
                          &n_negative, &n_values, &n_inexact, &n_sign_lost}) {
    json.at(0).at(i++).get_to(*field);
  }
  json.at(0).at(i++).get_to(worst_ulp);
  json.at(0).at(i).get_to(peaks);
  json.at(1).at(0).get_to(n_rounded);
  i = 1;
  for (double* field : {&squares, &squared_error, &error, &max_error}) {
    json.at(1).at(i++).get_to(*field);
  }
}

// "options.format is \"q4w4a16\" there and \"w8a8\" now": the first difference.
std::string Difference(const Json& there, const Json& now, const std::string& where) {
  if (!there.is_object() || !now.is_object()) {
    return fmt::format("{} is {} there and {} now", where, there.dump(), now.dump());
  }
  std::vector<std::string> keys;
  for (const auto& [key, value] : there.items()) keys.push_back(key);
  for (const auto& [key, value] : now.items()) {
    if (!there.contains(key)) keys.push_back(key);
  }
  for (const std::string& key : keys) {
    const Json& a = there.contains(key) ? there[key] : Json();
    const Json& b = now.contains(key) ? now[key] : Json();
    if (a != b) return Difference(a, b, where.empty() ? key : fmt::format("{}.{}", where, key));
  }
  return "nothing differs";
}

}  // namespace

Result<Json> WhatIsMade(const checkpoint::Checkpoint& source, const std::string& config_sha256,
                        const Options& options) {
  Json shards = Json::object();
  for (const MappedFile& file : source.files()) {
    NIBBLE_ASSIGN_OR_RETURN(shards[file.path().filename().string()], Identity(file));
  }
  return Json{{"output_version", kOutputVersion},
              {"options",
               {{"format", Name(options.format)},
                {"scale_dtype", nibble::Name(options.scale_dtype)},
                {"rounding", options.rounding == Rounding::kMinMax ? "minmax" : "none"},
                {"keep_towers", options.keep_towers},
                {"allow_offgrid", options.allow_off_grid},
                {"tensor_parallel", options.tensor_parallel},
                {"max_shard_bytes", options.max_shard_bytes}}},
              {"source", {{"config_sha256", config_sha256}, {"shards", shards}}}};
}

Status CheckMade(const std::filesystem::path& left, const Json& there, const Json& now) {
  if (there == now) return {};
  return Fail("{}: cannot go on with it: {}; repeat that run's options on its source, or remove it",
              left.string(), Difference(there, now, ""));
}

std::unexpected<Error> LeftByInterruptedRun(const std::filesystem::path& left) {
  return Fail("{}: left by an interrupted run; --resume goes on with it, else remove it",
              left.string());
}

Status CheckRoom(const std::filesystem::path& dir, uint64_t n_bytes) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(dir, error);
  if (error || space.capacity == 0 || space.available >= n_bytes) return {};
  return Fail("{}: {} bytes are needed and {} are free", dir.string(), n_bytes, space.available);
}

Json CountsToJson(std::span<const PackCounts> counts) {
  Json json = Json::array();
  for (const PackCounts& entry : counts) json.push_back(ToJson(entry));
  return json;
}

Status CountsFromJson(const Json& json, std::span<PackCounts> counts) {
  if (!json.is_array() || json.size() != counts.size()) {
    return Fail("counts of {} tensors, expected {}", json.size(), counts.size());
  }
  try {
    for (size_t i = 0; i < counts.size(); ++i) FromJson(json[i], &counts[i]);
  } catch (const Json::exception& fault) {
    return Fail("counts that cannot be read: {}", fault.what());
  }
  return {};
}

}  // namespace nibble::repack
