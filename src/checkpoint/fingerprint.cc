#include "checkpoint/fingerprint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/dtype.h"
#include "base/sha256.h"

namespace nibble::checkpoint {
namespace {

constexpr size_t kFirstBytes = 4096;

class Digest {
 public:
  template <typename Shape>
  void Add(const std::string& name, std::string_view type, const Shape& shape,
           std::span<const std::byte> bytes) {
    const std::string head =
        fmt::format("{} {} {} {}", name, type, fmt::join(shape, ","),
                    Sha256Hex(bytes.first(std::min(kFirstBytes, bytes.size()))));
    tensors_[name] = head;
  }

  std::string Hex() const {
    Sha256 digest;
    for (const auto& [name, head] : tensors_) digest.Update(std::as_bytes(std::span(head)));
    return digest.Hex();
  }

 private:
  std::map<std::string, std::string> tensors_;
};

}  // namespace

std::string Fingerprint(const Checkpoint& checkpoint) {
  Digest digest;
  for (const Tensor& tensor : checkpoint.tensors()) {
    digest.Add(tensor.info.name, Name(tensor.info.dtype), tensor.info.shape, tensor.bytes);
  }
  return digest.Hex();
}

std::string Fingerprint(const GgufFile& file) {
  Digest digest;
  for (const GgufTensor& tensor : file.header().tensors) {
    digest.Add(tensor.name, InfoOf(tensor.type).name, tensor.dims, file.Bytes(tensor));
  }
  return digest.Hex();
}

}  // namespace nibble::checkpoint
