#include "checkpoint/gguf_file.h"

namespace nibble::checkpoint {

bool IsGgufPath(const std::filesystem::path& path) {
  std::error_code ignored;
  return path.extension() == ".gguf" && !std::filesystem::is_directory(path, ignored);
}

Result<GgufFile> GgufFile::Open(const std::filesystem::path& path) {
  NIBBLE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  NIBBLE_ASSIGN_OR_RETURN(GgufHeader header, ParseGgufHeader(file.bytes(), path.string()));
  return GgufFile(std::move(file), std::move(header));
}

}  // namespace nibble::checkpoint
