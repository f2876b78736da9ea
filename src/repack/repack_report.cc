// RepackReport's sums and its JSON form: no times, paths or thread counts, so equal runs give equal
// files.
#include <algorithm>
#include <string>

#include "base/check.h"
#include "repack/repack.h"

namespace nibble::repack {

uint64_t RepackReport::source_bytes() const {
  uint64_t n_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!IsSecondPacking(i)) n_bytes += tensors[i].source_bytes;
  }
  return n_bytes;
}

bool RepackReport::IsSecondPacking(size_t i) const {
  return i > 0 && tensors[i].source == tensors[i - 1].source &&
         tensors[i].row_begin == tensors[i - 1].row_begin;
}

uint64_t RepackReport::output_bytes() const {
  uint64_t n_bytes = 0;
  for (const TensorReport& tensor : tensors) n_bytes += tensor.output_bytes;
  return n_bytes;
}

size_t RepackReport::CountOf(Action action) const {
  return static_cast<size_t>(std::ranges::count(tensors, action, &TensorReport::action));
}

std::vector<const TensorReport*> RepackReport::left_matrices() const {
  std::vector<const TensorReport*> left;
  for (const TensorReport& tensor : tensors) {
    const bool is_text = tensor.part != gemma::Part::kAudio && tensor.part != gemma::Part::kVision;
    if (tensor.action == Action::kCopy && is_text && tensor.shape.size() > 1) {
      left.push_back(&tensor);
    }
  }
  return left;
}

double RepackReport::packed_share() const {
  uint64_t n_packed = 0;
  uint64_t n_text = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorReport& tensor = tensors[i];
    const bool is_text = tensor.part != gemma::Part::kAudio && tensor.part != gemma::Part::kVision;
    if (!is_text || tensor.output.empty() || IsSecondPacking(i)) continue;
    n_text += tensor.source_bytes;
    if (tensor.action == Action::kPack) n_packed += tensor.source_bytes;
  }
  return n_text == 0 ? 0 : static_cast<double>(n_packed) / static_cast<double>(n_text);
}

Json RepackReport::Coverage() const {
  Json left = Json::array();
  for (const TensorReport* tensor : left_matrices()) {
    left.push_back({{"tensor", tensor->source}, {"bytes", tensor->source_bytes}});
  }
  return {{"packed_share", packed_share()}, {"matrices_left", left}};
}

namespace {

// Of what was rounded, if anything; the rest holds the source's values (or the nearest scale's).
const char* LossyRule(const Options& options) {
  switch (options.format) {
    case Format::kW8A8:
    case Format::kW8A8Emb4:
      return "linears: int8 per output channel, scale = absmax / 127";
    case Format::kQ4W4A16:
    case Format::kQ4W4A16Emb4:
    case Format::kGguf:
      return options.rounding == Rounding::kMinMax ? "int4, scale = amax / 7.5 per group" : nullptr;
  }
  CHECK(false);
}

std::string Reader(const Options& options) {
  std::string reader = "int4: value = bf16(float32(code) * float32(scale))";
  if (options.format == Format::kW8A8 || options.format == Format::kW8A8Emb4) {
    reader += "; int8: value = float32(code) * scale, activations int8 per token";
  }
  return reader;
}

}  // namespace

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
    if (tensor.action == Action::kPack) entry["encoding"] = Name(tensor.encoding);
    if (tensor.counts.grid.n_groups > 0) entry["grid"] = tensor.counts.grid.ToJson();
    if (tensor.counts.rounding.n_values > 0) entry["rounding"] = tensor.counts.rounding.ToJson();
    entries.push_back(std::move(entry));
  }
  Json json = {{"format", Name(options.format)},
               {"scale_dtype", nibble::Name(options.scale_dtype)},
               {"reader", Reader(options)},
               {"lossy", nullptr},
               {"keep_towers", options.keep_towers},
               {"allow_offgrid", options.allow_off_grid},
               {"dry_run", options.dry_run},
               {"source",
                {{"config_sha256", source_config_sha256},
                 {"fingerprint", source_fingerprint},
                 {"bytes", source_bytes()}}},
               {"output", {{"bytes", output_bytes()}, {"shards", shards}}},
               {"files_copied", copied_files},
               {"linears_left_bf16", unpacked_linears},
               {"coverage", Coverage()},
               {"tensors_packed", CountOf(Action::kPack)},
               {"tensors_copied", CountOf(Action::kCopy)},
               {"tensors_dropped",
                {{"towers", CountOf(Action::kDropTower)},
                 {"kv_of_shared_layers", CountOf(Action::kDropLeftover)},
                 {"duplicate_heads", CountOf(Action::kDropDuplicateHead)}}},
               {"tensors", entries}};
  if (const char* rule = LossyRule(options); rule != nullptr) json["lossy"] = rule;
  if (totals.grid.n_groups > 0) json["totals"] = totals.grid.ToJson();
  if (totals.rounding.n_values > 0) json["rounding"] = totals.rounding.ToJson();
  return json;
}

}  // namespace nibble::repack
