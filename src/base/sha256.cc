#include "base/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/mapped_file.h"

namespace nibble {
namespace {

EVP_MD_CTX* Context(void* context) {
  CHECK(context != nullptr);
  return static_cast<EVP_MD_CTX*>(context);
}

}  // namespace

void Sha256::Deleter::operator()(void* context) const { EVP_MD_CTX_free(Context(context)); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CHECK(EVP_DigestInit_ex(Context(context_.get()), EVP_sha256(), nullptr) == 1);
}

void Sha256::Update(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(Context(context_.get()), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::Hex() const {
  const std::unique_ptr<void, Deleter> copy(EVP_MD_CTX_new());  // ending a digest uses it up
  CHECK(EVP_MD_CTX_copy_ex(Context(copy.get()), Context(context_.get())) == 1);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size_bytes = 0;
  CHECK(EVP_DigestFinal_ex(Context(copy.get()), digest.data(), &size_bytes) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size_bytes; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

std::string Sha256Hex(std::span<const std::byte> bytes) {
  Sha256 digest;
  digest.Update(bytes);
  return digest.Hex();
}

Result<std::string> Sha256HexOfFile(const std::filesystem::path& path) {
  constexpr size_t kPieceBytes = size_t{8} << 20;
  NIBBLE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  Sha256 digest;
  for (auto left = file.bytes(); !left.empty();) {
    const auto piece = left.first(std::min(left.size(), kPieceBytes));
    PrefetchPages(piece);
    digest.Update(piece);
    ReleasePages(piece);
    left = left.subspan(piece.size());
  }
  return digest.Hex();
}

}  // namespace nibble
