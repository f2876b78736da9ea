#include "checkpoint/checksums.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/sha256.h"

namespace nibble::checkpoint {

Status CheckSha256Sums(const std::filesystem::path& dir) {
  constexpr size_t kHexChars = 64;
  const std::filesystem::path sums = dir / "SHA256SUMS";
  std::error_code error;
  if (!std::filesystem::exists(sums, error)) return {};
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(sums));
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    // "HEX  NAME", or "HEX *NAME" for binary mode.
    const bool is_entry = line.size() > kHexChars + 2 && line[kHexChars] == ' ' &&
                          (line[kHexChars + 1] == ' ' || line[kHexChars + 1] == '*');
    const std::string_view name = is_entry ? line.substr(kHexChars + 2) : "";
    if (name.empty() || name == ".." || name.find('/') != std::string_view::npos) {
      return Fail("{}: expected a SHA-256 and a plain file name, found {}", sums.string(),
                  QuoteForMessage(line));
    }
    NIBBLE_ASSIGN_OR_RETURN(const std::string found, Sha256HexOfFile(dir / name));
    if (found != line.substr(0, kHexChars)) {
      return Fail("{}: damaged: its SHA-256 is {}, {} says {}", (dir / name).string(), found,
                  sums.filename().string(), line.substr(0, kHexChars));
    }
  }
  return {};
}

}  // namespace nibble::checkpoint
