#include <algorithm>
#include <bit>
#include <optional>
#include <set>

#include "base/check.h"
#include "checkpoint/gguf.h"

namespace nibble::checkpoint {
namespace {

constexpr uint32_t kVersion = 3;

template <typename T>
  requires std::is_arithmetic_v<T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void Put(std::string& out, std::string_view text) {
  Put(out, uint64_t{text.size()});
  out.append(text);
}

void Put(std::string& out, const GgufArray& array) {
  Put(out, static_cast<uint32_t>(array.elements.index()));
  std::visit(
      [&](const auto& elements) {
        Put(out, uint64_t{elements.size()});
        // By value type: vector<bool>'s own elements are proxies.
        using T = std::remove_cvref_t<decltype(elements)>::value_type;
        for (const T& element : elements) Put(out, element);
      },
      array.elements);
}

uint64_t Alignment(std::span<const GgufEntry> metadata) {
  const auto entry = std::ranges::find(metadata, "general.alignment", &GgufEntry::key);
  if (entry == metadata.end()) return kGgufDefaultAlignmentBytes;
  const auto* const bytes = std::get_if<uint32_t>(&entry->value);
  CHECK(bytes != nullptr && std::has_single_bit(*bytes) && *bytes <= kGgufMaxAlignmentBytes);
  return *bytes;
}

uint64_t SizeBytes(const GgufTensor& tensor) {
  const std::optional<GgmlTypeInfo> info = FindGgmlType(static_cast<uint32_t>(tensor.type));
  CHECK(info.has_value());
  CHECK(tensor.dims.size() <= kGgufMaxDims);
  CHECK((tensor.dims.empty() ? 1 : tensor.dims[0]) % info->block_size == 0);
  const std::optional<uint64_t> size_bytes = GgmlSizeBytes(*info, tensor.dims);
  CHECK(size_bytes.has_value());
  return *size_bytes;
}

}  // namespace

Result<GgufLayout> LayOutGguf(std::span<const GgufEntry> metadata,
                              std::span<const GgufTensor> tensors, std::string_view where) {
  GgufLayout layout{.header = "GGUF", .alignment_bytes = Alignment(metadata)};
  std::string& header = layout.header;
  Put(header, kVersion);
  Put(header, uint64_t{tensors.size()});
  Put(header, uint64_t{metadata.size()});
  std::set<std::string_view> keys;
  for (const GgufEntry& entry : metadata) {
    CHECK(!entry.key.empty() && keys.insert(entry.key).second);
    Put(header, entry.key);
    Put(header, static_cast<uint32_t>(entry.value.index()));
    std::visit([&](const auto& value) { Put(header, value); }, entry.value);
  }
  std::set<std::string_view> names;
  uint64_t offset_bytes = 0;
  for (const GgufTensor& tensor : tensors) {
    CHECK(!tensor.name.empty() && names.insert(tensor.name).second);
    if (tensor.name.size() > kGgufMaxWrittenNameBytes) {
      return Fail("{}: tensor {}: name of {} bytes, readers accept {}", where,
                  QuoteForMessage(tensor.name), tensor.name.size(), kGgufMaxWrittenNameBytes);
    }
    Put(header, tensor.name);
    Put(header, static_cast<uint32_t>(tensor.dims.size()));
    for (const int64_t dim : tensor.dims) Put(header, dim);
    Put(header, static_cast<uint32_t>(tensor.type));
    Put(header, offset_bytes);
    const uint64_t size_bytes = SizeBytes(tensor);
    offset_bytes += size_bytes + layout.PaddingAfter(size_bytes);
  }
  header.append(layout.PaddingAfter(header.size()), '\0');
  return layout;
}

GgufWriter::GgufWriter(AtomicFile file, GgufLayout layout, std::vector<uint64_t> tensor_bytes)
    : file_(std::move(file)), layout_(std::move(layout)), tensor_bytes_(std::move(tensor_bytes)) {}

Result<GgufWriter> GgufWriter::Create(const std::filesystem::path& path,
                                      std::span<const GgufEntry> metadata,
                                      std::span<const GgufTensor> tensors) {
  NIBBLE_ASSIGN_OR_RETURN(GgufLayout layout, LayOutGguf(metadata, tensors, path.string()));
  std::vector<uint64_t> tensor_bytes;
  for (const GgufTensor& tensor : tensors) tensor_bytes.push_back(SizeBytes(tensor));
  NIBBLE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  NIBBLE_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(layout.header))));
  return GgufWriter(std::move(file), std::move(layout), std::move(tensor_bytes));
}

Status GgufWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (tensor_idx_ == tensor_bytes_.size()) {
      return Fail("{}: {} bytes more than declared", file_.path().string(), bytes.size());
    }
    uint64_t& missing_bytes = tensor_bytes_[tensor_idx_];
    const auto piece = bytes.first(std::min<uint64_t>(bytes.size(), missing_bytes));
    NIBBLE_RETURN_IF_ERROR(file_.Append(piece));
    bytes = bytes.subspan(piece.size());
    missing_bytes -= piece.size();
    if (missing_bytes == 0) {
      ++tensor_idx_;
      const std::vector<std::byte> zeros(layout_.PaddingAfter(file_.size_bytes()));
      NIBBLE_RETURN_IF_ERROR(file_.Append(zeros));
    }
  }
  return {};
}

Status GgufWriter::Commit() {
  uint64_t missing_bytes = 0;
  for (const uint64_t tensor_bytes : tensor_bytes_) missing_bytes += tensor_bytes;
  if (missing_bytes > 0) {
    return Fail("{}: {} bytes fewer than declared", file_.path().string(), missing_bytes);
  }
  return file_.Commit();
}

}  // namespace nibble::checkpoint
