#include "base/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "base/check.h"

namespace nibble {

std::string Sha256Hex(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size_bytes = 0;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size_bytes, EVP_sha256(), nullptr) ==
        1);
  std::string hex;
  for (unsigned int i = 0; i < size_bytes; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace nibble
