// VerifyReport as JSON: no times, paths or thread counts, so equal runs give equal text.
#include <map>

#include "repack/verify.h"

namespace nibble::repack {

Json VerifyReport::ToJson() const {
  Json entries = Json::array();
  std::map<std::string, uint64_t> accounts;
  for (const VerifiedTensor& tensor : tensors) {
    Json entry = {{"source", tensor.source}, {"found_as", tensor.found_as}};
    if (tensor.counts.n_groups > 0) entry["grid"] = tensor.counts.ToJson();
    if (tensor.measured.n_values > 0) entry["measured"] = tensor.measured.ToJson();
    entries.push_back(std::move(entry));
    ++accounts[tensor.found_as];
  }
  Json json = {{"ok", is_right()},
               {"scale_dtype", scale_dtype},
               {"reader",
                "int4: value = bf16(float32(code) * float32(scale)); "
                "int8: value = float32(code) * float32(scale)"},
               {"measured", Json::object()},
               {"source_tensors", accounts},
               {"faults", faults},
               {"tensors", entries}};
  if (int4.n_values > 0) {
    json["totals"] = totals.ToJson();
    json["measured"]["int4"] = int4.ToJson();
  }
  if (int8.n_values > 0) json["measured"]["int8"] = int8.ToJson();
  return json;
}

}  // namespace nibble::repack
