// RepackReport's sums and its JSON form: no times, paths or thread counts, so equal runs give equal
// files.
#include <algorithm>

#include "repack/repack.h"

namespace nibble::repack {

uint64_t RepackReport::source_bytes() const {
  uint64_t n_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool is_second_packing = i > 0 && tensors[i].source == tensors[i - 1].source &&
                                   tensors[i].row_begin == tensors[i - 1].row_begin;
    if (!is_second_packing) n_bytes += tensors[i].source_bytes;
  }
  return n_bytes;
}

uint64_t RepackReport::output_bytes() const {
  uint64_t n_bytes = 0;
  for (const TensorReport& tensor : tensors) n_bytes += tensor.output_bytes;
  return n_bytes;
}

size_t RepackReport::CountOf(Action action) const {
  return static_cast<size_t>(std::ranges::count(tensors, action, &TensorReport::action));
}

Json RepackReport::ToJson() const {
  Json entries = Json::array();
  for (const TensorReport& tensor : tensors) {
    Json entry = {{"source", tensor.source},
                  {"action", Name(tensor.action)},
                  {"part", gemma::Name(tensor.part)},
                  {"shape", tensor.shape},
                  {"source_bytes", tensor.source_bytes},
                  {"output_bytes", tensor.output_bytes}};
    if (!tensor.output.empty()) entry["output"] = tensor.output;
    if (tensor.action == Action::kPack && !options.dry_run)
      entry["grid"] = tensor.counts.grid.ToJson();
    entries.push_back(std::move(entry));
  }
  Json json = {{"format", Name(options.format)},
               {"scale_dtype", nibble::Name(options.scale_dtype)},
               {"reader", "value = bf16(float32(code) * float32(scale))"},
               {"keep_towers", options.keep_towers},
               {"allow_offgrid", options.allow_off_grid},
               {"dry_run", options.dry_run},
               {"source", {{"config_sha256", source_config_sha256}, {"bytes", source_bytes()}}},
               {"output", {{"bytes", output_bytes()}, {"shards", shards}}},
               {"files_copied", copied_files},
               {"linears_left_bf16", unpacked_linears},
               {"tensors_packed", CountOf(Action::kPack)},
               {"tensors_copied", CountOf(Action::kCopy)},
               {"tensors_dropped",
                {{"towers", CountOf(Action::kDropTower)},
                 {"kv_of_shared_layers", CountOf(Action::kDropLeftover)},
                 {"duplicate_heads", CountOf(Action::kDropDuplicateHead)}}},
               {"tensors", entries}};
  if (!options.dry_run) json["totals"] = totals.grid.ToJson();
  return json;
}

}  // namespace nibble::repack
