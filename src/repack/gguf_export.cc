#include "repack/gguf_export.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/instruction_set.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "checkpoint/checkpoint.h"
#include "gemma/gguf.h"
#include "gemma/gguf_towers.h"
#include "repack/gguf_stream.h"
#include "repack/gguf_towers.h"
#include "repack/resume.h"

namespace nibble::repack {
namespace {

using checkpoint::Checkpoint;
using checkpoint::GgufArray;
using checkpoint::GgufEntry;
using checkpoint::GgufTensor;

constexpr uint32_t kMostlyQ40 = 2;  // llama.cpp's numbers of such files
constexpr uint32_t kMostlyBf16 = 32;
constexpr uint32_t kQuantizationVersion = 2;

Status CheckOptions(const std::filesystem::path& out, const Options& options) {
  if (out.extension() != ".gguf") {
    return Fail("{}: expected a file name that ends in .gguf", out.string());
  }
  if (options.scale_dtype != DType::kF16) return Fail("gguf: the scales of Q4_0 are fp16");
  return {};
}

// The sampling that generation_config.json recommends, and tokens that are never to be drawn.
Status AddGenerationConfig(const std::filesystem::path& dir, std::vector<GgufEntry>* entries) {
  const std::filesystem::path path = dir / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  NIBBLE_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  if (!json.is_object()) return Fail("{}: expected an object", path.string());
  const auto number = [&](const char* key) -> std::optional<double> {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number()) return std::nullopt;
    const auto value = found->get<double>();
    return std::fabs(value) < 1e9 ? std::optional(value) : std::nullopt;
  };
  if (const auto top_k = number("top_k")) {
    entries->push_back({"general.sampling.top_k", static_cast<int32_t>(*top_k)});
  }
  if (const auto top_p = number("top_p")) {
    entries->push_back({"general.sampling.top_p", static_cast<float>(*top_p)});
  }
  if (const auto temperature = number("temperature")) {
    entries->push_back({"general.sampling.temp", static_cast<float>(*temperature)});
  }
  const auto suppressed = json.find("suppress_tokens");
  if (suppressed == json.end() || !suppressed->is_array()) return {};
  std::vector<int32_t> ids;
  for (const Json& id : *suppressed) {
    if (!id.is_number_integer()) {
      return Fail("{}: suppress_tokens: expected integers", path.string());
    }
    ids.push_back(id.get<int32_t>());
  }
  entries->push_back({"tokenizer.ggml.suppress_tokens", GgufArray{std::move(ids)}});
  return {};
}

void AddGeneral(const std::filesystem::path& source, const char* type, uint32_t file_type,
                std::vector<GgufEntry>* entries) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::weakly_canonical(source, ignored);
  entries->push_back({"general.type", std::string(type)});
  entries->push_back({"general.name", absolute.filename().string()});
  entries->push_back({"general.file_type", file_type});
  entries->push_back({"general.quantization_version", kQuantizationVersion});
}

Result<std::vector<GgufEntry>> Metadata(const std::filesystem::path& source,
                                        const gemma::Config& config,
                                        std::vector<GgufEntry> tokenizer) {
  NIBBLE_ASSIGN_OR_RETURN(std::vector<GgufEntry> entries, gemma::GgufConfig(config));
  AddGeneral(source, "model", kMostlyQ40, &entries);
  NIBBLE_RETURN_IF_ERROR(AddGenerationConfig(source, &entries));
  std::ranges::move(tokenizer, std::back_inserter(entries));
  return entries;
}

Result<LaidOutGguf> LayOut(const std::filesystem::path& out, const Options& options,
                           const std::vector<GgufEntry>& metadata,
                           const std::vector<GgufOutput>& outputs) {
  std::vector<GgufTensor> declared;
  declared.reserve(outputs.size());
  for (const GgufOutput& output : outputs) declared.push_back(output.tensor);
  LaidOutGguf file{.path = out, .layout = {}, .report = {}};
  NIBBLE_ASSIGN_OR_RETURN(file.layout, LayOutGguf(metadata, declared, out.string()));
  GgufReport& report = file.report;
  report.options = options;
  report.file = out.string();
  report.header_bytes = file.layout.header.size();
  report.file_bytes = report.header_bytes;
  for (const GgufOutput& output : outputs) {
    GgufTensorReport tensor{.output = output, .source = "", .counts = {}};
    if (output.source != nullptr) {
      tensor.source = output.source->info.name;
      tensor.source_bytes = output.source->info.size_bytes;
    }
    report.source_bytes += tensor.source_bytes;
    report.tensors.push_back(std::move(tensor));
    const uint64_t padding_bytes = file.layout.PaddingAfter(output.tensor.size_bytes);
    report.padding_bytes += padding_bytes;
    report.file_bytes += output.tensor.size_bytes + padding_bytes;
  }
  return file;
}

std::vector<std::string> Dropped(const Plan& plan) {
  std::vector<std::string> dropped;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kPack || planned.action == Action::kCopy) continue;
    dropped.push_back(fmt::format("{}: {}", planned.source->info.name, Name(planned.action)));
  }
  return dropped;
}

// They end with the checkpoint.
GgufReport WithoutSources(GgufReport report) {
  for (GgufTensorReport& tensor : report.tensors) tensor.output.source = nullptr;
  return report;
}

}  // namespace

std::vector<GgufGroup> GgufReport::Groups() const {
  std::vector<GgufGroup> groups;
  for (const GgufTensorReport& tensor : tensors) {
    const std::string type(checkpoint::InfoOf(tensor.output.tensor.type).name);
    const auto is_of = [&](const GgufGroup& group) {
      return group.part == tensor.output.part && group.type == type;
    };
    auto found = std::ranges::find_if(groups, is_of);
    if (found == groups.end()) {
      groups.push_back({.part = tensor.output.part, .type = type});
      found = std::prev(groups.end());
    }
    ++found->n_tensors;
    found->n_bytes += tensor.output.tensor.size_bytes;
  }
  std::ranges::stable_sort(groups, {}, &GgufGroup::part);
  return groups;
}

Json GgufReport::ToJson() const {
  Json json = {{"file", file},
               {"format", Name(options.format)},
               {"allow_offgrid", options.allow_off_grid},
               {"dry_run", options.dry_run},
               {"source_bytes", source_bytes},
               {"header_bytes", header_bytes},
               {"padding_bytes", padding_bytes},
               {"file_bytes", file_bytes},
               {"sha256", sha256},
               {"grid", totals.ToJson()},
               {"dropped", dropped},
               {"groups", Json::array()},
               {"tensors", Json::array()}};
  for (const GgufGroup& group : Groups()) {
    json["groups"].push_back({{"part", gemma::Name(group.part)},
                              {"type", group.type},
                              {"tensors", group.n_tensors},
                              {"bytes", group.n_bytes}});
  }
  for (const GgufTensorReport& tensor : tensors) {
    const GgufTensor& written = tensor.output.tensor;
    Json entry = {{"name", written.name},    {"type", checkpoint::InfoOf(written.type).name},
                  {"dims", written.dims},    {"bytes", written.size_bytes},
                  {"source", tensor.source}, {"source_bytes", tensor.source_bytes}};
    if (tensor.counts.n_groups > 0) entry["grid"] = tensor.counts.ToJson();
    if (!tensor.output.why.empty()) entry["why"] = tensor.output.why;
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

Json GgufExport::ToJson() const {
  Json json = text.ToJson();
  if (towers.has_value()) json["towers"] = towers->ToJson();
  return json;
}

Result<GgufExport> ExportGguf(const std::filesystem::path& source, const std::filesystem::path& out,
                              const Options& options, GgufTables tables,
                              std::vector<GgufEntry> tokenizer, const ProgressFn& progress) {
  NIBBLE_RETURN_IF_ERROR(ChosenInstructionSet());
  NIBBLE_RETURN_IF_ERROR(CheckOptions(out, options));
  NIBBLE_ASSIGN_OR_RETURN(const gemma::Config config, gemma::ReadConfig(source));
  NIBBLE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(source));
  NIBBLE_ASSIGN_OR_RETURN(const Plan plan, MakePlan(checkpoint, config, options));
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<GgufOutput> outputs, GgufOutputs(plan, config, tables));
  NIBBLE_ASSIGN_OR_RETURN(std::vector<GgufEntry> metadata,
                          Metadata(source, config, std::move(tokenizer)));
  NIBBLE_ASSIGN_OR_RETURN(LaidOutGguf text, LayOut(out, options, metadata, outputs));
  text.report.source_bytes = checkpoint.size_bytes();
  text.report.dropped = Dropped(plan);
  std::optional<LaidOutGguf> towers;
  if (options.keep_towers) {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<GgufOutput> kept, GgufTowerOutputs(plan, config));
    NIBBLE_ASSIGN_OR_RETURN(metadata, GgufTowerMetadata(source, config));
    AddGeneral(source, "mmproj", kMostlyBf16, &metadata);
    NIBBLE_ASSIGN_OR_RETURN(towers, LayOut(gemma::GgufTowersPath(out), options, metadata, kept));
  }
  if (!options.dry_run) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string config_text, ReadTextFile(source / "config.json"));
    NIBBLE_ASSIGN_OR_RETURN(
        const Json made,
        WhatIsMade(checkpoint, Sha256Hex(std::as_bytes(std::span(config_text))), options));
    NIBBLE_RETURN_IF_ERROR(
        WriteGguf(made, config, progress, towers.has_value() ? &*towers : nullptr, &text));
  }
  GgufExport written{.text = WithoutSources(std::move(text.report)), .towers = std::nullopt};
  if (towers.has_value()) written.towers = WithoutSources(std::move(towers->report));
  return written;
}

}  // namespace nibble::repack
