// Element types of tensors, with the names that safetensors gives them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

enum class DType : uint8_t {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64
};

// Bytes of one element.
int64_t SizeBytes(DType dtype);

// "BF16", "F16", "I32", ...: the safetensors name.
std::string_view Name(DType dtype);

// The dtype of a safetensors name; nothing for a name that we do not know.
std::optional<DType> ParseDType(std::string_view name);

}  // namespace nibble
