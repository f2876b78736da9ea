// Any bytes as a safetensors file: the parser never reads outside them, and what it accepts keeps
// the promises of checkpoint/safetensors.h. What it refuses, it refuses in one short line.
//
// The 8 length bytes are taken from the input in one half of the cases and set right in the other:
// a random length is nearly always refused, and the rest of the parser would go untested.
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "checkpoint/safetensors.h"

namespace {

using nibble::checkpoint::ParseSafetensorsHeader;
using nibble::checkpoint::SafetensorsHeader;
using nibble::checkpoint::TensorInfo;

void CheckAccepted(const SafetensorsHeader& header, size_t file_bytes) {
  CHECK(header.data_begin_bytes >= 10 && header.data_begin_bytes <= file_bytes);
  uint64_t covered_bytes = 0;
  std::set<std::string> names;
  for (const TensorInfo& info : header.tensors) {
    CHECK(names.insert(info.name).second);
    CHECK(info.offset_bytes == covered_bytes);
    covered_bytes += info.size_bytes;
    auto product = static_cast<unsigned __int128>(nibble::SizeBytes(info.dtype));
    for (const int64_t dim : info.shape) {
      CHECK(dim >= 0);
      product *= static_cast<unsigned __int128>(dim);
      CHECK(product < static_cast<unsigned __int128>(1) << 64);
    }
    CHECK(product == info.size_bytes);
    CHECK(info.n_elements() >= 0);
  }
  CHECK(header.data_begin_bytes + covered_bytes == file_bytes);
}

void CheckFile(const std::vector<std::byte>& file) {
  const auto header = ParseSafetensorsHeader(file, "fuzz");
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
  // The first two bytes as the length of the data area, the rest as header and data.
  const size_t rest_bytes = size_bytes - 2;
  const size_t data_bytes = (data[0] | data[1] << 8) % (rest_bytes + 1);
  const uint64_t header_bytes = rest_bytes - data_bytes;
  file.clear();
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<std::byte>(header_bytes >> (8 * i)));
  file.insert(file.end(), bytes + 2, bytes + size_bytes);
  CheckFile(file);
  return 0;
}
