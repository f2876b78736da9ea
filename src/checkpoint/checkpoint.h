// A model directory's tensors: all shards of a Hugging Face checkpoint behind one name table.
//
// With model.safetensors.index.json its weight_map decides which shard a tensor comes from (a name
// in two shards is legal); without one, model.safetensors (or the only *.safetensors file) is the
// checkpoint. Shard names must be plain file names that stay inside the directory, symlinks
// resolved; the one exception is the Hugging Face cache, whose snapshots/REVISION/NAME are symlinks
// to ../../blobs/DIGEST. Tensors of a shard that the index does not name there are ignored, as
// transformers does. Tested by checkpoint_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace nibble::checkpoint {

// A tensor and its bytes, which live as long as the Checkpoint. Their address need not be a
// multiple of the element's size.
struct Tensor {
  TensorInfo info;
  std::string shard;  // file name
  std::span<const std::byte> bytes;
};

class Checkpoint {
 public:
  // Opens a directory, or one .safetensors file. Errors name file and tensor.
  static Result<Checkpoint> Open(const std::filesystem::path& path);

  // All tensors, sorted by shard, then by offset: the order in which the disk holds them.
  std::span<const Tensor> tensors() const { return tensors_; }

  // nullptr if there is none of that name.
  const Tensor* Find(std::string_view name) const;

  const std::filesystem::path& path() const { return path_; }
  std::span<const MappedFile> files() const { return files_; }  // the shards
  uint64_t size_bytes() const;                                  // of all tensors

 private:
  using NameSet = std::set<std::string, std::less<>>;

  Checkpoint() = default;

  // Adds the tensors of one file: all, or the `wanted` ones, of which none may be missing there.
  Status AddShard(const std::filesystem::path& path, const NameSet* wanted, std::string_view where);

  std::filesystem::path path_;
  std::vector<MappedFile> files_;
  std::vector<Tensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;  // name -> position in tensors_
};

// The text of model.safetensors.index.json as Hugging Face writes it:
// {"metadata": {"total_size": bytes}, "weight_map": {name: shard}}.
std::string IndexText(std::span<const std::pair<std::string, std::string>> name_to_shard,
                      uint64_t total_bytes);

}  // namespace nibble::checkpoint
