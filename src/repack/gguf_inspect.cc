#include "repack/gguf_inspect.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/gguf_file.h"
#include "gemma/gguf.h"
#include "gemma/gguf_towers.h"
#include "gemma/tensors.h"

namespace nibble::repack {

Result<Anatomy> InspectGguf(const std::filesystem::path& path) {
  using gemma::Part;
  NIBBLE_ASSIGN_OR_RETURN(const checkpoint::GgufFile file, checkpoint::GgufFile::Open(path));
  Anatomy anatomy;
  if (file.header().FindValue("general.architecture") != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(
        anatomy.architecture,
        checkpoint::GetGguf<std::string>(file.header(), "general.architecture", file.where()));
  }
  anatomy.format = "gguf";
  anatomy.basis = fmt::format("a GGUF file, version {}", file.header().version);
  std::map<std::optional<Part>, PartAnatomy> parts;
  for (const checkpoint::GgufTensor& tensor : file.header().tensors) {
    const auto name = gemma::CanonicalName(tensor.name);
    const std::optional<Part> part =
        name ? gemma::PartOf(*name) : gemma::GgufTowerPart(tensor.name);
    if (!part.has_value() && tensor.name != gemma::kGgufRopeFactors) {
      anatomy.unknown.push_back({tensor.name, tensor.size_bytes});
    }
    PartAnatomy& sums = parts[part];
    sums.part = part.has_value() ? gemma::Name(*part) : "other";
    ++sums.n_tensors;
    sums.n_bytes += tensor.size_bytes;
    sums.bytes_by_dtype[std::string(checkpoint::InfoOf(tensor.type).name)] += tensor.size_bytes;
    anatomy.n_bytes += tensor.size_bytes;
  }
  for (auto& [part, sums] : parts) anatomy.parts.push_back(std::move(sums));
  // A map puts the names of no part first; they come last.
  if (parts.contains(std::nullopt)) std::ranges::rotate(anatomy.parts, anatomy.parts.begin() + 1);
  return anatomy;
}

}  // namespace nibble::repack
