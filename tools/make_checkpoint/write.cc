#include "write.h"

#include <algorithm>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"

namespace nibble::make_checkpoint {
namespace {

constexpr size_t kValueBytes = sizeof(uint16_t);
// 16 MiB: large enough that starting the threads costs nothing, and bounded.
constexpr int64_t kBufferGroups = (16 << 20) / (kGroup * kValueBytes);

uint64_t SizeBytes(const Tensor& tensor) {
  return static_cast<uint64_t>(tensor.n_elements()) * kValueBytes;
}

std::vector<std::span<const Tensor>> SplitIntoShards(std::span<const Tensor> tensors,
                                                     uint64_t shard_bytes) {
  std::vector<std::span<const Tensor>> shards;
  size_t begin = 0;
  uint64_t filled_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (i > begin && filled_bytes + SizeBytes(tensors[i]) > shard_bytes) {
      shards.push_back(tensors.subspan(begin, i - begin));
      begin = i;
      filled_bytes = 0;
    }
    filled_bytes += SizeBytes(tensors[i]);
  }
  shards.push_back(tensors.subspan(begin));
  return shards;
}

std::vector<checkpoint::TensorInfo> Infos(std::span<const Tensor> tensors) {
  std::vector<checkpoint::TensorInfo> infos;
  for (const Tensor& tensor : tensors) {
    infos.push_back({.name = tensor.name,
                     .dtype = DType::kBF16,
                     .shape = tensor.shape,
                     .size_bytes = SizeBytes(tensor)});
  }
  return infos;
}

// The header, and a hole for the values: zeros that take no disk.
Status WriteHoles(const std::filesystem::path& path, std::span<const Tensor> tensors) {
  NIBBLE_ASSIGN_OR_RETURN(
      const std::string header,
      checkpoint::SafetensorsHeaderBytes(Infos(tensors), {{"format", "pt"}}, path.string()));
  NIBBLE_RETURN_IF_ERROR(WriteFile(path, header));
  uint64_t n_bytes = header.size();
  for (const Tensor& tensor : tensors) n_bytes += SizeBytes(tensor);
  std::error_code error;
  std::filesystem::resize_file(path, n_bytes, error);
  if (error)
    return Fail("{}: cannot make it {} bytes long: {}", path.string(), n_bytes, error.message());
  return {};
}

class ShardWriter {
 public:
  ShardWriter(const Values& values, int n_threads, uint64_t total_bytes, const ProgressFn& progress)
      : values_(values),
        pool_(n_threads),
        buffer_(kBufferGroups * kGroup),
        total_bytes_(total_bytes),
        progress_(progress) {}

  Status Write(const std::filesystem::path& path, std::span<const Tensor> tensors) {
    NIBBLE_ASSIGN_OR_RETURN(auto writer, checkpoint::SafetensorsWriter::Create(path, Infos(tensors),
                                                                               {{"format", "pt"}}));
    for (const Tensor& tensor : tensors) NIBBLE_RETURN_IF_ERROR(Append(tensor, writer));
    return writer.Commit();
  }

 private:
  Status Append(const Tensor& tensor, checkpoint::SafetensorsWriter& writer) {
    const Values::Tensor source = values_.ForTensor(tensor.name, tensor.fill);
    const int64_t n_groups = (tensor.n_elements() + kGroup - 1) / kGroup;
    for (int64_t first = 0; first < n_groups; first += kBufferGroups) {
      const int64_t n_values =
          std::min(kBufferGroups * kGroup, tensor.n_elements() - first * kGroup);
      const std::span<uint16_t> chunk(buffer_.data(), static_cast<size_t>(n_values));
      pool_.ParallelFor((n_values + kGroup - 1) / kGroup, [&](int64_t begin, int64_t end) {
        const int64_t end_value = std::min(end * kGroup, n_values);
        source.Write(first + begin, chunk.subspan(static_cast<size_t>(begin * kGroup),
                                                  static_cast<size_t>(end_value - begin * kGroup)));
      });
      NIBBLE_RETURN_IF_ERROR(writer.Append(std::as_bytes(chunk)));
      done_bytes_ += chunk.size_bytes();
      progress_(done_bytes_, total_bytes_);
    }
    return {};
  }

  const Values& values_;
  ThreadPool pool_;
  std::vector<uint16_t> buffer_;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_;
  const ProgressFn& progress_;
};

}  // namespace

Result<Written> WriteShards(const std::filesystem::path& dir, std::span<const Tensor> tensors,
                            const Values* values, uint64_t shard_bytes, int n_threads,
                            const ProgressFn& progress) {
  uint64_t total_bytes = 0;
  for (const Tensor& tensor : tensors) total_bytes += SizeBytes(tensor);
  const auto shards = SplitIntoShards(tensors, shard_bytes);
  std::optional<ShardWriter> writer;
  if (values != nullptr) writer.emplace(*values, n_threads, total_bytes, progress);
  Written written{.n_shards = shards.size()};
  Json weight_map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    NIBBLE_RETURN_IF_ERROR(writer.has_value() ? writer->Write(dir / name, shards[i])
                                              : WriteHoles(dir / name, shards[i]));
    written.file_bytes += std::filesystem::file_size(dir / name);
    for (const Tensor& tensor : shards[i]) weight_map[tensor.name] = name;
  }
  if (shards.size() > 1) {
    const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
    NIBBLE_RETURN_IF_ERROR(WriteFile(dir / "model.safetensors.index.json", index.dump(2) + "\n"));
  }
  return written;
}

}  // namespace nibble::make_checkpoint
