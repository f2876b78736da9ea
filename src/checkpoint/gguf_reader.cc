#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "base/json.h"
#include "checkpoint/gguf.h"

namespace nibble::checkpoint {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<GgufValue>> kTypeNames = {
    "UINT8", "INT8",   "UINT16", "INT16",  "UINT32", "INT32",  "FLOAT32",
    "BOOL",  "STRING", "ARRAY",  "UINT64", "INT64",  "FLOAT64"};

constexpr std::string_view kMagic = "GGUF";
constexpr std::string_view kAlignmentKey = "general.alignment";

// The fewest bytes that the parts of a header can take: what a count is bounded by.
constexpr uint64_t kMinStringBytes = 8;                            // its length
constexpr uint64_t kMinArrayBytes = 4 + 8;                         // type, count
constexpr uint64_t kMinEntryBytes = kMinStringBytes + 4 + 1;       // key, type, value
constexpr uint64_t kMinTensorBytes = kMinStringBytes + 4 + 4 + 8;  // name, rank, type, offset

template <typename T>
consteval uint64_t MinElementBytes() {
  if constexpr (std::is_same_v<T, std::string>) return kMinStringBytes;
  if constexpr (std::is_same_v<T, GgufArray>) return kMinArrayBytes;
  if constexpr (std::is_same_v<T, bool>) return 1;
  return sizeof(T);
}

// Reads the file front to back. Errors name the file and the part that is being read.
class Cursor {
 public:
  Cursor(std::span<const std::byte> file, std::string_view where) : rest_(file), where_(where) {}

  // What follows is part of `kind` (key or tensor) `name`, or of nothing yet named.
  void Enter(std::string_view kind, std::string_view name) {
    kind_ = kind;
    name_ = name;
  }

  template <typename... Args>
  std::unexpected<Error> Refuse(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string fault = fmt::format(format, std::forward<Args>(args)...);
    if (kind_.empty()) return Fail("{}: {}", where_, fault);
    return Fail("{}: {} {}: {}", where_, kind_, QuoteForMessage(name_), fault);
  }

  uint64_t rest_bytes() const { return rest_.size(); }

  Result<std::span<const std::byte>> Bytes(uint64_t n_bytes) {
    if (n_bytes > rest_.size()) {
      return Refuse("{} bytes are expected, but only {} follow: truncated?", n_bytes, rest_.size());
    }
    const auto bytes = rest_.first(n_bytes);
    rest_ = rest_.subspan(n_bytes);
    return bytes;
  }

  template <typename T>
    requires std::is_arithmetic_v<T>
  Result<T> Number() {
    NIBBLE_ASSIGN_OR_RETURN(const auto bytes, Bytes(sizeof(T)));
    T value{};
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  // Into the file's own bytes.
  Result<std::string_view> String() {
    NIBBLE_ASSIGN_OR_RETURN(const auto length_bytes, Number<uint64_t>());
    if (length_bytes > rest_.size()) {
      return Refuse("string of {} bytes, but only {} follow its length: truncated?", length_bytes,
                    rest_.size());
    }
    NIBBLE_ASSIGN_OR_RETURN(const auto bytes, Bytes(length_bytes));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  // A count of things of at least `min_bytes` each.
  Result<uint64_t> Count(std::string_view things, uint64_t min_bytes) {
    NIBBLE_ASSIGN_OR_RETURN(const auto count, Number<uint64_t>());
    if (count > rest_.size() / min_bytes) {
      return Refuse("{} {} do not fit into the {} bytes that follow: truncated?", count, things,
                    rest_.size());
    }
    return count;
  }

 private:
  std::span<const std::byte> rest_;
  std::string_view where_;
  std::string_view kind_;
  std::string_view name_;
};

Result<GgufArray> ReadArray(Cursor& cursor, int depth);

template <typename T>
Result<T> ReadAs(Cursor& cursor, int depth) {
  if constexpr (std::is_same_v<T, GgufArray>) {
    return ReadArray(cursor, depth + 1);
  } else if constexpr (std::is_same_v<T, std::string>) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string_view text, cursor.String());
    return std::string(text);
  } else if constexpr (std::is_same_v<T, bool>) {
    NIBBLE_ASSIGN_OR_RETURN(const auto byte, cursor.Number<uint8_t>());
    if (byte > 1) return cursor.Refuse("BOOL is neither 0 nor 1 but {}", byte);
    return byte == 1;
  } else {
    return cursor.Number<T>();
  }
}

template <typename T>
Result<GgufArray> ReadElements(Cursor& cursor, int depth) {
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t count, cursor.Count("elements", MinElementBytes<T>()));
  std::vector<T> elements;
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    NIBBLE_ASSIGN_OR_RETURN(const auto bytes, cursor.Bytes(count * sizeof(T)));
    elements.resize(count);
    if (count > 0) std::memcpy(elements.data(), bytes.data(), bytes.size());
  } else {
    elements.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      NIBBLE_ASSIGN_OR_RETURN(T element, ReadAs<T>(cursor, depth));
      elements.push_back(std::move(element));
    }
  }
  return GgufArray{std::move(elements)};
}

template <typename T>
Result<GgufValue> ReadValueAs(Cursor& cursor) {
  NIBBLE_ASSIGN_OR_RETURN(T value, ReadAs<T>(cursor, 0));
  return GgufValue(std::move(value));
}

Status CheckTypeId(const Cursor& cursor, uint32_t type_id) {
  if (type_id >= kTypeNames.size()) return cursor.Refuse("unknown value type {}", type_id);
  return {};
}

// The readers of all value types, by type id.
template <size_t... kIds>
constexpr auto ValueReaders(std::index_sequence<kIds...>) {
  return std::array{&ReadValueAs<std::variant_alternative_t<kIds, GgufValue>>...};
}
template <size_t... kIds>
constexpr auto ElementReaders(std::index_sequence<kIds...>) {
  return std::array{&ReadElements<std::variant_alternative_t<kIds, GgufValue>>...};
}
using TypeIds = std::make_index_sequence<std::variant_size_v<GgufValue>>;

Result<GgufValue> ReadValue(Cursor& cursor) {
  static constexpr auto kReaders = ValueReaders(TypeIds{});
  NIBBLE_ASSIGN_OR_RETURN(const auto type_id, cursor.Number<uint32_t>());
  NIBBLE_RETURN_IF_ERROR(CheckTypeId(cursor, type_id));
  return kReaders[type_id](cursor);
}

Result<GgufArray> ReadArray(Cursor& cursor, int depth) {
  static constexpr auto kReaders = ElementReaders(TypeIds{});
  if (depth > kGgufMaxArrayDepth) {
    return cursor.Refuse("arrays nested deeper than {}", kGgufMaxArrayDepth);
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto type_id, cursor.Number<uint32_t>());
  NIBBLE_RETURN_IF_ERROR(CheckTypeId(cursor, type_id));
  return kReaders[type_id](cursor, depth);
}

// Reads magic, version and the two counts.
Result<std::pair<uint64_t, uint64_t>> ReadPreamble(Cursor& cursor, uint32_t& version) {
  NIBBLE_ASSIGN_OR_RETURN(const auto magic, cursor.Bytes(kMagic.size()));
  if (std::memcmp(magic.data(), kMagic.data(), kMagic.size()) != 0) {
    return cursor.Refuse("does not begin with \"{}\": not a GGUF file?", kMagic);
  }
  NIBBLE_ASSIGN_OR_RETURN(version, cursor.Number<uint32_t>());
  if (version != 2 && version != 3) {
    return cursor.Refuse("GGUF version {}, expected 2 or 3{}", version,
                         (version & 0xffff) == 0 ? ": a big-endian file?" : "");
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto n_tensors, cursor.Count("tensors", kMinTensorBytes));
  NIBBLE_ASSIGN_OR_RETURN(const auto n_entries, cursor.Count("metadata entries", kMinEntryBytes));
  return std::pair(n_tensors, n_entries);
}

Result<std::vector<GgufEntry>> ReadMetadata(Cursor& cursor, uint64_t n_entries) {
  std::vector<GgufEntry> metadata;
  std::set<std::string_view> keys;
  for (uint64_t i = 0; i < n_entries; ++i) {
    cursor.Enter("", "");
    NIBBLE_ASSIGN_OR_RETURN(const std::string_view key, cursor.String());
    cursor.Enter("key", key);
    if (key.empty()) return cursor.Refuse("empty");
    if (!keys.insert(key).second) return cursor.Refuse("stands in the file twice");
    NIBBLE_ASSIGN_OR_RETURN(GgufValue value, ReadValue(cursor));
    metadata.push_back({.key = std::string(key), .value = std::move(value)});
  }
  return metadata;
}

Result<uint64_t> ReadAlignment(const GgufHeader& header, std::string_view where) {
  if (header.FindValue(kAlignmentKey) == nullptr) return kGgufDefaultAlignmentBytes;
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t bytes, GetGguf<uint32_t>(header, kAlignmentKey, where));
  if (!std::has_single_bit(bytes) || bytes > kGgufMaxAlignmentBytes) {
    return Fail("{}: key \"{}\": expected a power of two up to {}, found {}", where, kAlignmentKey,
                kGgufMaxAlignmentBytes, bytes);
  }
  return bytes;
}

// Dimensions, type and offset of the tensor that the cursor has entered.
Result<GgufTensor> ReadTensor(Cursor& cursor, std::string_view name) {
  GgufTensor tensor;
  tensor.name = name;
  NIBBLE_ASSIGN_OR_RETURN(const auto n_dims, cursor.Number<uint32_t>());
  if (n_dims > kGgufMaxDims) {
    return cursor.Refuse("{} dimensions, at most {} are supported", n_dims, kGgufMaxDims);
  }
  for (uint32_t i = 0; i < n_dims; ++i) {
    NIBBLE_ASSIGN_OR_RETURN(const auto dim, cursor.Number<uint64_t>());
    if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return cursor.Refuse("dimension {} is out of range", dim);
    }
    tensor.dims.push_back(static_cast<int64_t>(dim));
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto type_id, cursor.Number<uint32_t>());
  const std::optional<GgmlTypeInfo> info = FindGgmlType(type_id);
  if (!info) return cursor.Refuse("unknown ggml type {}", type_id);
  tensor.type = info->type;
  const int64_t row_elements = tensor.dims.empty() ? 1 : tensor.dims[0];
  if (row_elements % info->block_size != 0) {
    return cursor.Refuse("rows of {} elements are not whole blocks of {}, which have {}",
                         row_elements, info->name, info->block_size);
  }
  const std::optional<uint64_t> size_bytes = GgmlSizeBytes(*info, tensor.dims);
  if (!size_bytes) {
    return cursor.Refuse("{} [{}] overflows", info->name, fmt::join(tensor.dims, ", "));
  }
  tensor.size_bytes = *size_bytes;
  NIBBLE_ASSIGN_OR_RETURN(tensor.offset_bytes, cursor.Number<uint64_t>());
  return tensor;
}

Result<std::vector<GgufTensor>> ReadTensors(Cursor& cursor, uint64_t n_tensors) {
  std::vector<GgufTensor> tensors;
  std::set<std::string_view> names;
  for (uint64_t i = 0; i < n_tensors; ++i) {
    cursor.Enter("", "");
    NIBBLE_ASSIGN_OR_RETURN(const std::string_view name, cursor.String());
    cursor.Enter("tensor", name);
    if (name.empty()) return cursor.Refuse("empty name");
    if (!names.insert(name).second) return cursor.Refuse("stands in the file twice");
    NIBBLE_ASSIGN_OR_RETURN(GgufTensor tensor, ReadTensor(cursor, name));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// Bounds, alignment and overlap of the tensors' bytes. Gaps are legal: padding is one.
Status CheckPlacement(std::span<const GgufTensor> tensors, uint64_t alignment_bytes,
                      uint64_t data_bytes, std::string_view where) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  // By size second: an empty tensor stands before the one that begins at the same byte.
  std::ranges::sort(order, {}, [&](size_t i) {
    return std::tuple(tensors[i].offset_bytes, tensors[i].size_bytes, i);
  });
  uint64_t covered_bytes = 0;
  std::string_view previous;
  for (const size_t i : order) {
    const GgufTensor& tensor = tensors[i];
    const uint64_t begin = tensor.offset_bytes;
    const auto refuse = [&](const std::string& fault) {
      return Fail("{}: tensor {}: {}", where, QuoteForMessage(tensor.name), fault);
    };
    if (begin % alignment_bytes != 0) {
      return refuse(fmt::format("offset {} is not a multiple of {}", begin, alignment_bytes));
    }
    if (begin > data_bytes || tensor.size_bytes > data_bytes - begin) {
      return refuse(
          fmt::format("{} bytes at byte {} of the data, but there are only {}: truncated?",
                      tensor.size_bytes, begin, data_bytes));
    }
    if (begin < covered_bytes) {
      return refuse(fmt::format("begins at byte {} of the data, within {}", begin,
                                QuoteForMessage(previous)));
    }
    covered_bytes = begin + tensor.size_bytes;
    previous = tensor.name;
  }
  return {};
}

}  // namespace

const GgufValue* GgufHeader::FindValue(std::string_view key) const {
  const auto found = std::ranges::find(metadata, key, &GgufEntry::key);
  return found == metadata.end() ? nullptr : &found->value;
}

const GgufTensor* GgufHeader::FindTensor(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &GgufTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

std::string GgufTypeName(const GgufValue& value) {
  if (const auto* const array = std::get_if<GgufArray>(&value)) {
    return fmt::format("ARRAY of {}", kTypeNames[array->elements.index()]);
  }
  return std::string(kTypeNames[value.index()]);
}

Result<GgufHeader> ParseGgufHeader(std::span<const std::byte> file, std::string_view where) {
  Cursor cursor(file, where);
  GgufHeader header;
  NIBBLE_ASSIGN_OR_RETURN(const auto counts, ReadPreamble(cursor, header.version));
  NIBBLE_ASSIGN_OR_RETURN(header.metadata, ReadMetadata(cursor, counts.second));
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t alignment_bytes, ReadAlignment(header, where));
  NIBBLE_ASSIGN_OR_RETURN(header.tensors, ReadTensors(cursor, counts.first));
  const uint64_t header_bytes = file.size() - cursor.rest_bytes();
  // A file without tensor data may end before the data area begins.
  header.data_begin_bytes = std::min<uint64_t>(
      (header_bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes, file.size());
  const uint64_t data_bytes = file.size() - header.data_begin_bytes;
  NIBBLE_RETURN_IF_ERROR(CheckPlacement(header.tensors, alignment_bytes, data_bytes, where));
  return header;
}

Result<uint64_t> GetGgufUnsigned(const GgufHeader& header, std::string_view key,
                                 std::string_view where) {
  const GgufValue* const value = header.FindValue(key);
  if (value == nullptr) return Fail("{}: no key {}", where, QuoteForMessage(key));
  return std::visit(
      [&](const auto& found) -> Result<uint64_t> {
        using T = std::remove_cvref_t<decltype(found)>;
        if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
          if (std::cmp_greater_equal(found, 0)) return static_cast<uint64_t>(found);
          return Fail("{}: key {}: expected a count, found {}", where, QuoteForMessage(key),
                      static_cast<int64_t>(found));
        } else {
          return Fail("{}: key {}: expected an integer, found {}", where, QuoteForMessage(key),
                      GgufTypeName(*value));
        }
      },
      *value);
}

}  // namespace nibble::checkpoint
