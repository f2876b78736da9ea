// Any bytes as a GGUF file: the parser never reads outside them, and what it accepts keeps the
// promises of checkpoint/gguf.h. What it refuses, it refuses in one short line.
//
// The input also stands after a right preamble that claims as many entries and tensors as its first
// two bytes say: a random count is nearly always refused, and the rest would go untested.
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "checkpoint/gguf.h"

namespace {

using nibble::checkpoint::GgufHeader;
using nibble::checkpoint::GgufTensor;
using nibble::checkpoint::ParseGgufHeader;

void CheckTensor(const GgufTensor& tensor) {
  const auto info = nibble::checkpoint::FindGgmlType(static_cast<uint32_t>(tensor.type));
  CHECK(info.has_value());
  CHECK(tensor.dims.size() <= nibble::checkpoint::kGgufMaxDims);
  unsigned __int128 n_elements = 1;
  for (const int64_t dim : tensor.dims) {
    CHECK(dim >= 0);
    n_elements *= static_cast<unsigned __int128>(dim);
    CHECK(n_elements < static_cast<unsigned __int128>(1) << 63);
  }
  CHECK(n_elements % static_cast<uint64_t>(info->block_size) == 0);
  CHECK(n_elements / static_cast<uint64_t>(info->block_size) *
            static_cast<uint64_t>(info->block_bytes) ==
        tensor.size_bytes);
}

void CheckAccepted(const GgufHeader& header, size_t file_bytes) {
  CHECK(header.data_begin_bytes >= 24 && header.data_begin_bytes <= file_bytes);
  const uint64_t data_bytes = file_bytes - header.data_begin_bytes;
  std::set<std::string> keys;
  for (const auto& entry : header.metadata) CHECK(keys.insert(entry.key).second);
  std::set<std::string> names;
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const GgufTensor& tensor : header.tensors) {
    CHECK(names.insert(tensor.name).second);
    CheckTensor(tensor);
    ranges.emplace_back(tensor.offset_bytes, tensor.offset_bytes + tensor.size_bytes);
  }
  std::ranges::sort(ranges);
  uint64_t covered_bytes = 0;
  for (const auto& [begin, end] : ranges) {
    CHECK(begin >= covered_bytes && end >= begin && end <= data_bytes);
    covered_bytes = end;
  }
}

void CheckFile(const std::vector<std::byte>& file) {
  const auto header = ParseGgufHeader(file, "fuzz");
  if (header.has_value()) {
    CheckAccepted(*header, file.size());
  } else {
    CHECK(header.error().message.find('\n') == std::string::npos);
    CHECK(header.error().message.size() < 1000);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> file(bytes, bytes + size_bytes);
  CheckFile(file);
  if (size_bytes < 2) return 0;
  file.clear();
  for (const char c : {'G', 'G', 'U', 'F', '\3', '\0', '\0', '\0'}) file.push_back(std::byte(c));
  for (const uint8_t count : {data[0], data[1]}) {
    file.push_back(std::byte{count});
    file.insert(file.end(), 7, std::byte{0});
  }
  file.insert(file.end(), bytes + 2, bytes + size_bytes);
  CheckFile(file);
  return 0;
}
