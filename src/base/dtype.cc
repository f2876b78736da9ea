#include "base/dtype.h"

#include <array>

#include "base/check.h"

namespace nibble {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  int64_t size_bytes;
};

constexpr std::array kEntries = {
    Entry{DType::kBool, "BOOL", 1}, Entry{DType::kU8, "U8", 1},   Entry{DType::kI8, "I8", 1},
    Entry{DType::kI16, "I16", 2},   Entry{DType::kU16, "U16", 2}, Entry{DType::kF16, "F16", 2},
    Entry{DType::kBF16, "BF16", 2}, Entry{DType::kI32, "I32", 4}, Entry{DType::kU32, "U32", 4},
    Entry{DType::kF32, "F32", 4},   Entry{DType::kF64, "F64", 8}, Entry{DType::kI64, "I64", 8},
    Entry{DType::kU64, "U64", 8},
};

const Entry& Find(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  CHECK(index < kEntries.size() && kEntries[index].dtype == dtype);
  return kEntries[index];
}

}  // namespace

int64_t SizeBytes(DType dtype) { return Find(dtype).size_bytes; }

std::string_view Name(DType dtype) { return Find(dtype).name; }

std::optional<DType> ParseDType(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace nibble
