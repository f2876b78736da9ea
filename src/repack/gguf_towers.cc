#include "repack/gguf_towers.h"

#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/json.h"
#include "gemma/gguf_towers.h"
#include "gemma/tensors.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;

using checkpoint::GgufArray;
using checkpoint::GgufEntry;

// Three numbers under `key`, or nothing.
std::optional<std::vector<float>> Channels(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_array() || found->size() != 3) return std::nullopt;
  std::vector<float> values;
  for (const Json& value : *found) {
    if (!value.is_number()) return std::nullopt;
    values.push_back(value.get<float>());
  }
  return values;
}

}  // namespace

Result<std::vector<GgufOutput>> GgufTowerOutputs(const Plan& plan, const gemma::Config& config) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<gemma::TowerSpec> expected, gemma::ExpectedTowers(config));
  std::map<std::string, gemma::TowerSpec, std::less<>> specs;
  for (gemma::TowerSpec& spec : expected) specs.emplace(spec.source, std::move(spec));
  std::vector<GgufOutput> outputs;
  for (const PlannedTensor& planned : plan.tensors) {
    const checkpoint::Tensor& source = *planned.source;
    const auto part = gemma::PartOf(source.info.name);
    if (part != gemma::Part::kVision && part != gemma::Part::kAudio) continue;
    const auto spec = specs.find(source.info.name);
    if (spec == specs.end()) {
      return Fail("{}: tensor {} has no place in llama.cpp's towers as config.json describes them",
                  source.shard, QuoteForMessage(source.info.name));
    }
    Result<checkpoint::GgufTensor> tensor = gemma::GgufTowerTensor(spec->second, source.info);
    if (!tensor.has_value()) return Fail("{}: {}", source.shard, tensor.error().message);
    outputs.push_back({.source = &source,
                       .part = *part,
                       .tensor = *std::move(tensor),
                       .why = "",
                       .change = spec->second.change});
    specs.erase(spec);
  }
  if (specs.empty()) return outputs;
  return Fail("tensor {} is missing, without which llama.cpp loads no towers",
              specs.begin()->first);
}

Result<std::vector<GgufEntry>> GgufTowerMetadata(const fs::path& source,
                                                 const gemma::Config& config) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<GgufEntry> entries, gemma::GgufTowerConfig(config));
  std::vector<float> mean = {0, 0, 0};
  std::vector<float> deviation = {1, 1, 1};
  for (const char* name : {"preprocessor_config.json", "processor_config.json"}) {
    std::error_code ignored;
    if (!fs::exists(source / name, ignored)) continue;
    NIBBLE_ASSIGN_OR_RETURN(Json json, ReadJsonFile(source / name));
    if (json.contains("image_processor")) json = json["image_processor"];
    mean = Channels(json, "image_mean").value_or(mean);
    deviation = Channels(json, "image_std").value_or(deviation);
  }
  entries.push_back({"clip.vision.image_mean", GgufArray{std::move(mean)}});
  entries.push_back({"clip.vision.image_std", GgufArray{std::move(deviation)}});
  return entries;
}

}  // namespace nibble::repack
