// SHA-256 as lower-case hex (OpenSSL), for manifests and reports.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace nibble {

std::string Sha256Hex(std::span<const std::byte> bytes);

}  // namespace nibble
