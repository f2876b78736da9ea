#include "checkpoint/safetensors.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/json.h"

namespace nibble::checkpoint {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMaxRank = 8;         // an expert bank has 3
constexpr size_t kMaxNameBytes = 512;  // real names have about 80
constexpr std::string_view kMetadataKey = "__metadata__";

// product(shape) * SizeBytes(dtype); nothing if it does not fit into int64_t.
std::optional<uint64_t> ByteSize(std::span<const int64_t> shape, DType dtype) {
  int64_t product = SizeBytes(dtype);
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(product, dim, &product)) return std::nullopt;
  }
  return static_cast<uint64_t>(product);
}

uint64_t ReadLittleEndian64(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return value;
}

// The JSON text of the header.
Result<std::string_view> HeaderText(std::span<const std::byte> file, std::string_view where) {
  if (file.size() < kLengthBytes) {
    return Fail("{}: {} bytes are too few for a safetensors file", where, file.size());
  }
  const uint64_t length_bytes = ReadLittleEndian64(file);
  const uint64_t rest_bytes = file.size() - kLengthBytes;
  if (length_bytes > kMaxHeaderBytes) {
    return Fail("{}: header of {} bytes is longer than the limit of {}: not a safetensors file?",
                where, length_bytes, kMaxHeaderBytes);
  }
  if (length_bytes > rest_bytes) {
    return Fail("{}: header of {} bytes, but only {} follow its length: truncated?", where,
                length_bytes, rest_bytes);
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              length_bytes);
  if (!text.starts_with('{')) return Fail("{}: header does not begin with '{{'", where);
  return text;
}

Result<std::map<std::string, std::string>> ParseMetadata(const Json& json, std::string_view where) {
  if (!json.is_object()) return Fail("{}: {} is not an object", where, kMetadataKey);
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return Fail("{}: {}: value of {} is not a string", where, kMetadataKey, QuoteForMessage(key));
    }
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

Result<DType> ParseDTypeField(const Json& entry, std::string_view place) {
  const auto field = entry.find("dtype");
  if (field == entry.end() || !field->is_string()) return Fail("{}: no \"dtype\" string", place);
  const auto& name = field->get_ref<const std::string&>();
  const std::optional<DType> dtype = ParseDType(name);
  if (!dtype) return Fail("{}: unknown dtype {}", place, QuoteForMessage(name));
  return *dtype;
}

Result<std::vector<int64_t>> ParseShapeField(const Json& entry, std::string_view place) {
  const auto field = entry.find("shape");
  if (field == entry.end() || !field->is_array()) return Fail("{}: no \"shape\" list", place);
  if (field->size() > kMaxRank) {
    return Fail("{}: {} dimensions, at most {} are supported", place, field->size(), kMaxRank);
  }
  std::vector<int64_t> shape;
  for (const Json& dim : *field) {
    if (!dim.is_number_unsigned() ||
        dim.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail("{}: dimension {} is not a non-negative integer", place,
                  QuoteForMessage(dim.dump()));
    }
    shape.push_back(dim.get<int64_t>());
  }
  return shape;
}

// Checks one entry against its own shape and against the size of the data area.
Result<TensorInfo> ParseTensor(const std::string& name, const Json& entry, uint64_t data_bytes,
                               std::string_view where) {
  const std::string place = fmt::format("{}: tensor {}", where, QuoteForMessage(name));
  if (name.size() > kMaxNameBytes) {
    return Fail("{}: name of {} bytes, at most {} are supported", place, name.size(),
                kMaxNameBytes);
  }
  if (!entry.is_object()) return Fail("{}: entry is not an object", place);
  TensorInfo info;
  info.name = name;
  NIBBLE_ASSIGN_OR_RETURN(info.dtype, ParseDTypeField(entry, place));
  NIBBLE_ASSIGN_OR_RETURN(info.shape, ParseShapeField(entry, place));
  const std::optional<uint64_t> size_bytes = ByteSize(info.shape, info.dtype);
  if (!size_bytes) {
    return Fail("{}: shape [{}] overflows", place, fmt::join(info.shape, ", "));
  }

  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return Fail("{}: \"data_offsets\" is not a pair of non-negative integers", place);
  }
  const auto begin = (*offsets)[0].get<uint64_t>();
  const auto end = (*offsets)[1].get<uint64_t>();
  if (begin > end) return Fail("{}: data_offsets reversed: [{}, {}]", place, begin, end);
  if (end > data_bytes) {
    return Fail("{}: ends at byte {} of the data, but there are only {}: truncated?", place, end,
                data_bytes);
  }
  if (end - begin != *size_bytes) {
    return Fail("{}: {} [{}] takes {} bytes, data_offsets give {}", place, Name(info.dtype),
                fmt::join(info.shape, ", "), *size_bytes, end - begin);
  }
  info.offset_bytes = begin;
  info.size_bytes = *size_bytes;
  return info;
}

// Sorts the tensors by offset and checks that they tile [0, data_bytes) exactly.
Status SortAndCheckTiling(std::vector<TensorInfo>& tensors, uint64_t data_bytes,
                          std::string_view where) {
  // By size second: an empty tensor stands before the one that begins at the same byte.
  std::ranges::sort(tensors, {}, [](const TensorInfo& info) {
    return std::tuple(info.offset_bytes, info.size_bytes, std::string_view(info.name));
  });
  uint64_t covered_bytes = 0;
  std::string_view previous;
  for (const TensorInfo& info : tensors) {
    if (info.offset_bytes < covered_bytes) {
      return Fail("{}: tensor {} overlaps {}: begins at byte {} of the data, before byte {}", where,
                  QuoteForMessage(info.name), QuoteForMessage(previous), info.offset_bytes,
                  covered_bytes);
    }
    if (info.offset_bytes > covered_bytes) {
      return Fail("{}: gap before tensor {}: bytes {} to {} of the data belong to no tensor", where,
                  QuoteForMessage(info.name), covered_bytes, info.offset_bytes);
    }
    covered_bytes += info.size_bytes;
    previous = info.name;
  }
  if (covered_bytes != data_bytes) {
    return Fail("{}: {} trailing bytes after the last tensor", where, data_bytes - covered_bytes);
  }
  return {};
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                 std::string_view where) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file, where));
  NIBBLE_ASSIGN_OR_RETURN(const Json json, ParseJson(text, where));
  SafetensorsHeader header;
  header.data_begin_bytes = kLengthBytes + text.size();
  const uint64_t data_bytes = file.size() - header.data_begin_bytes;
  header.tensors.reserve(json.size());
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadataKey) {
      NIBBLE_ASSIGN_OR_RETURN(header.metadata, ParseMetadata(entry, where));
    } else {
      NIBBLE_ASSIGN_OR_RETURN(TensorInfo info, ParseTensor(name, entry, data_bytes, where));
      header.tensors.push_back(std::move(info));
    }
  }
  NIBBLE_RETURN_IF_ERROR(SortAndCheckTiling(header.tensors, data_bytes, where));
  return header;
}

Result<std::string> SafetensorsHeaderBytes(std::span<const TensorInfo> tensors,
                                           const std::map<std::string, std::string>& metadata,
                                           std::string_view where) {
  std::vector<std::string> entries;
  if (!metadata.empty()) {
    entries.push_back(fmt::format("\"{}\":{}", kMetadataKey, Json(metadata).dump()));
  }
  std::set<std::string_view> names = {kMetadataKey};
  uint64_t data_bytes = 0;
  for (const TensorInfo& info : tensors) {
    CHECK(names.insert(info.name).second);
    const std::optional<uint64_t> size_bytes = ByteSize(info.shape, info.dtype);
    CHECK(size_bytes.has_value());
    entries.push_back(fmt::format(
        R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", Json(info.name).dump(),
        Name(info.dtype), fmt::join(info.shape, ","), data_bytes, data_bytes + *size_bytes));
    data_bytes += *size_bytes;
  }
  std::string header = fmt::format("{{{}}}", fmt::join(entries, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxHeaderBytes) {
    return Fail("{}: header of {} bytes is longer than readers accept ({})", where, header.size(),
                kMaxHeaderBytes);
  }
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return length + header;
}

SafetensorsWriter::SafetensorsWriter(AtomicFile file, uint64_t expected_bytes)
    : file_(std::move(file)), expected_bytes_(expected_bytes) {}

Result<SafetensorsWriter> SafetensorsWriter::Create(
    const std::filesystem::path& path, std::span<const TensorInfo> tensors,
    const std::map<std::string, std::string>& metadata) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string header,
                          SafetensorsHeaderBytes(tensors, metadata, path.string()));
  uint64_t expected_bytes = header.size();
  for (const TensorInfo& info : tensors) expected_bytes += *ByteSize(info.shape, info.dtype);
  NIBBLE_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  NIBBLE_RETURN_IF_ERROR(file.Append(std::as_bytes(std::span(header))));
  return SafetensorsWriter(std::move(file), expected_bytes);
}

Status SafetensorsWriter::Append(std::span<const std::byte> bytes) { return file_.Append(bytes); }

Status SafetensorsWriter::Commit() {
  if (file_.size_bytes() != expected_bytes_) {
    return Fail("{}: {} bytes written, {} declared", file_.path().string(), file_.size_bytes(),
                expected_bytes_);
  }
  return file_.Commit();
}

}  // namespace nibble::checkpoint
