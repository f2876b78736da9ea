// A GGUF file open for reading: its header, checked, and the bytes of its tensors, mapped.
// Tested by gguf_file_test.cc.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "base/mapped_file.h"
#include "base/result.h"
#include "checkpoint/gguf.h"

namespace nibble::checkpoint {

// Whether `path` is to be read as a GGUF file: a file, not a directory, that ends in ".gguf".
bool IsGgufPath(const std::filesystem::path& path);

class GgufFile {
 public:
  // Errors as of ParseGgufHeader, beginning with the path.
  static Result<GgufFile> Open(const std::filesystem::path& path);

  const GgufHeader& header() const { return header_; }
  std::string where() const { return file_.path().string(); }  // begins error messages

  // Of a tensor of header(); valid as long as this object lives.
  std::span<const std::byte> Bytes(const GgufTensor& tensor) const {
    return file_.bytes().subspan(header_.data_begin_bytes + tensor.offset_bytes, tensor.size_bytes);
  }

 private:
  GgufFile(MappedFile file, GgufHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  MappedFile file_;
  GgufHeader header_;
};

}  // namespace nibble::checkpoint
