// SHA-256 as lower-case hex (OpenSSL, which uses the processor's own instructions), for manifests,
// checksum files and reports. Tested by files_test.cc.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace nibble {

// The digest of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();

  void Update(std::span<const std::byte> bytes);
  // Of all bytes so far, to which more may be added.
  std::string Hex() const;

 private:
  struct Deleter {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Deleter> context_;  // EVP_MD_CTX
};

std::string Sha256Hex(std::span<const std::byte> bytes);
// Of a whole file, read in pieces.
Result<std::string> Sha256HexOfFile(const std::filesystem::path& path);

}  // namespace nibble
