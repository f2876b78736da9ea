#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/json.h"

namespace nibble::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kExtension = ".safetensors";

using NameSet = std::set<std::string, std::less<>>;

// Whether `target` may stand for a file of `dir`; both without symlinks. The Hugging Face cache
// keeps files as snapshots/REVISION/NAME -> ../../blobs/DIGEST.
bool IsInside(const fs::path& target, const fs::path& dir) {
  const fs::path parent = target.parent_path();
  return parent == dir || (dir.parent_path().filename() == "snapshots" &&
                           parent == dir.parent_path().parent_path() / "blobs");
}

// The path of a directory's file, its name having come from an index or a listing.
Result<fs::path> ShardPath(const fs::path& dir, const std::string& name, std::string_view where) {
  const std::string quoted = QuoteForMessage(name);
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    return Fail("{}: shard {} is not a plain file name", where, quoted);
  }
  std::error_code error;
  const fs::path real_dir = fs::canonical(dir, error);
  if (error) return Fail("{}: cannot resolve: {}", dir.string(), error.message());
  const fs::path target = fs::canonical(dir / name, error);
  if (error) return Fail("{}: shard {}: {}", where, quoted, error.message());
  if (!IsInside(target, real_dir)) {
    return Fail("{}: shard {} leads out of the directory, to {}", where, quoted,
                QuoteForMessage(target.string()));
  }
  return dir / name;
}

// shard -> names of the tensors that count in it.
Result<std::map<std::string, NameSet>> ReadWeightMap(const fs::path& index_path) {
  NIBBLE_ASSIGN_OR_RETURN(const Json index, ReadJsonFile(index_path));
  const std::string where = index_path.string();
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object()) {
    return Fail("{}: no \"weight_map\" object", where);
  }
  std::map<std::string, NameSet> shards;
  for (const auto& [name, shard] : weight_map->items()) {
    if (!shard.is_string()) {
      return Fail("{}: tensor {}: shard is not a string", where, QuoteForMessage(name));
    }
    shards[shard.get<std::string>()].insert(name);
  }
  return shards;
}

// The one file of a directory without an index.
Result<fs::path> SingleFile(const fs::path& dir) {
  const std::string where = dir.string();
  std::error_code error;
  std::vector<std::string> found;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == kExtension) found.push_back(entry->path().filename());
  }
  if (error) return Fail("{}: cannot list: {}", where, error.message());
  if (std::ranges::find(found, kSingleName) != found.end()) {
    return ShardPath(dir, std::string(kSingleName), where);
  }
  if (found.size() == 1) return ShardPath(dir, found.front(), where);
  return Fail("{}: {} *{} files and neither {} nor {}", where, found.size(), kExtension, kIndexName,
              kSingleName);
}

}  // namespace

Status Checkpoint::AddShard(const fs::path& path, const NameSet* wanted, std::string_view where) {
  NIBBLE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  NIBBLE_ASSIGN_OR_RETURN(SafetensorsHeader header,
                          ParseSafetensorsHeader(file.bytes(), path.string()));
  const std::string shard = path.filename().string();
  const std::span<const std::byte> data = file.bytes().subspan(header.data_begin_bytes);
  for (TensorInfo& info : header.tensors) {
    if (wanted != nullptr && !wanted->contains(info.name)) continue;
    // An index names one shard for each tensor and a header holds a name once.
    CHECK(index_.emplace(info.name, tensors_.size()).second);
    const auto bytes = data.subspan(info.offset_bytes, info.size_bytes);
    tensors_.push_back({.info = std::move(info), .shard = shard, .bytes = bytes});
  }
  files_.push_back(std::move(file));
  if (wanted == nullptr) return {};
  for (const std::string& name : *wanted) {
    if (!index_.contains(name)) {
      return Fail("{}: tensor {} is not in its shard {}", where, QuoteForMessage(name), shard);
    }
  }
  return {};
}

Result<Checkpoint> Checkpoint::Open(const fs::path& path) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    NIBBLE_RETURN_IF_ERROR(checkpoint.AddShard(path, nullptr, path.string()));
    return checkpoint;
  }
  const fs::path index_path = path / kIndexName;
  if (!fs::exists(fs::symlink_status(index_path, error))) {
    NIBBLE_ASSIGN_OR_RETURN(const fs::path file, SingleFile(path));
    NIBBLE_RETURN_IF_ERROR(checkpoint.AddShard(file, nullptr, path.string()));
    return checkpoint;
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto shards, ReadWeightMap(index_path));
  const std::string where = index_path.string();
  for (const auto& [shard, names] : shards) {
    NIBBLE_ASSIGN_OR_RETURN(const fs::path shard_path, ShardPath(path, shard, where));
    NIBBLE_RETURN_IF_ERROR(checkpoint.AddShard(shard_path, &names, where));
  }
  return checkpoint;
}

const Tensor* Checkpoint::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

uint64_t Checkpoint::size_bytes() const {
  return std::transform_reduce(tensors_.begin(), tensors_.end(), uint64_t{0}, std::plus<>(),
                               [](const Tensor& tensor) { return tensor.info.size_bytes; });
}

std::string IndexText(std::span<const std::pair<std::string, std::string>> name_to_shard,
                      uint64_t total_bytes) {
  Json weight_map = Json::object();  // sorted by name
  for (const auto& [name, shard] : name_to_shard) {
    CHECK(!weight_map.contains(name));
    weight_map[name] = shard;
  }
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

}  // namespace nibble::checkpoint
