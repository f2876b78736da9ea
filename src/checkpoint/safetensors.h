// safetensors: one file's header and tensors, read from a mapping; a writer that streams.
//
// Layout: 8-byte little-endian header length, JSON header {name: {dtype, shape, data_offsets}} (may
// be padded with spaces; "__metadata__" maps strings to strings), then the tensors' bytes. The
// reader trusts nothing: lengths, offsets, shapes and names are checked before use, and the tensors
// must tile the data area exactly. Source: the format description of the safetensors project.
// Tested by safetensors_test.cc and fuzzed by fuzz/safetensors_fuzz.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "base/dtype.h"
#include "base/mapped_file.h"
#include "base/result.h"

namespace nibble::checkpoint {

// The reference library's cap on the header's size.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;  // each >= 0; empty for a scalar
  uint64_t offset_bytes = 0;   // from the start of the data area
  uint64_t size_bytes = 0;     // product(shape) * SizeBytes(dtype)

  int64_t n_elements() const { return static_cast<int64_t>(size_bytes) / SizeBytes(dtype); }
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their offsets
  std::map<std::string, std::string> metadata;
  uint64_t data_begin_bytes = 0;  // offset of the data area in the file
};

// Parses and checks a file's header. `file`: the whole file; `where` begins error messages, which
// name the tensor and the fault.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                 std::string_view where);

// The bytes before the data area, length included, of a file that holds these tensors in this order
// (name, dtype and shape are read; names are unique). Same declaration, same bytes: keys stand in
// the order declared, and the header is padded with spaces to a multiple of 8. Error: longer than
// readers accept; `where` begins it.
Result<std::string> SafetensorsHeaderBytes(std::span<const TensorInfo> tensors,
                                           const std::map<std::string, std::string>& metadata,
                                           std::string_view where);

// Writes one safetensors file: declare the tensors (name, dtype, shape), then append their bytes in
// the declared order in pieces of any size.
class SafetensorsWriter {
 public:
  static Result<SafetensorsWriter> Create(const std::filesystem::path& path,
                                          std::span<const TensorInfo> tensors,
                                          const std::map<std::string, std::string>& metadata);

  Status Append(std::span<const std::byte> bytes);

  // Error if the bytes appended are not exactly those declared.
  Status Commit();

 private:
  SafetensorsWriter(AtomicFile file, uint64_t expected_bytes);

  AtomicFile file_;
  uint64_t expected_bytes_;  // size of the whole file
};

}  // namespace nibble::checkpoint
