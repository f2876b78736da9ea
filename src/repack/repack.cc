#include "repack/repack.h"

#include <array>
#include <span>
#include <system_error>
#include <utility>

#include "base/instruction_set.h"
#include "base/mapped_file.h"
#include "base/sha256.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fingerprint.h"
#include "repack/model_card.h"
#include "repack/output_config.h"
#include "repack/output_directory.h"
#include "repack/output_shards.h"
#include "repack/resume.h"
#include "repack/slice_budget.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;

constexpr std::array kTextFiles = {"tokenizer.json",
                                   "tokenizer_config.json",
                                   "special_tokens_map.json",
                                   "chat_template.jinja",
                                   "generation_config.json",
                                   "LICENSE",
                                   "NOTICE"};
constexpr std::array kTowerFiles = {"preprocessor_config.json", "processor_config.json"};

RepackReport BeginReport(const Plan& plan, const Options& options, const std::string& config_text) {
  RepackReport report;
  report.options = options;
  report.unpacked_linears = plan.unpacked_linears;
  report.source_config_sha256 = Sha256Hex(std::as_bytes(std::span(config_text)));
  for (const PlannedTensor& tensor : plan.tensors) {
    TensorReport entry{.source = tensor.source->info.name,
                       .action = tensor.action,
                       .part = tensor.part,
                       .output = tensor.output,
                       .encoding = tensor.encoding,
                       .shape = tensor.source->info.shape,
                       .row_begin = tensor.row_begin,
                       .source_bytes = tensor.source_bytes(),
                       .counts = {}};
    for (const auto& info : tensor.OutputTensors(options.scale_dtype)) {
      entry.output_bytes += info.size_bytes;
    }
    report.tensors.push_back(std::move(entry));
  }
  return report;
}

Status CopyFiles(const fs::path& source, bool keep_towers, OutputDirectory* directory,
                 RepackReport* report) {
  std::vector<const char*> names(kTextFiles.begin(), kTextFiles.end());
  if (keep_towers) names.insert(names.end(), kTowerFiles.begin(), kTowerFiles.end());
  for (const char* name : names) {
    std::error_code error;
    if (!fs::exists(source / name, error)) continue;
    NIBBLE_ASSIGN_OR_RETURN(const std::string content, ReadTextFile(source / name));
    NIBBLE_RETURN_IF_ERROR(directory->WriteText(name, content));
    report->copied_files.emplace_back(name);
  }
  return {};
}

Status WriteAll(const fs::path& source, const gemma::Config& config, const Plan& plan,
                const Options& options, const ProgressFn& progress, OutputDirectory* directory,
                RepackReport* report) {
  NIBBLE_RETURN_IF_ERROR(WriteShards(plan, options, progress, directory, report));
  NIBBLE_RETURN_IF_ERROR(
      directory->WriteText("config.json", OutputConfig(config, plan, options).dump(2) + "\n"));
  NIBBLE_RETURN_IF_ERROR(CopyFiles(source, options.keep_towers, directory, report));
  NIBBLE_RETURN_IF_ERROR(
      directory->WriteText("nibble-report.json", report->ToJson().dump(2) + "\n"));
  NIBBLE_RETURN_IF_ERROR(
      directory->WriteText("README.md", ModelCard(source, config.json, *report)));
  return directory->Commit();
}

}  // namespace

Result<RepackReport> Repack(const fs::path& source, const fs::path& out, const Options& options,
                            const ProgressFn& progress) {
  NIBBLE_RETURN_IF_ERROR(ChosenInstructionSet());
  const fs::path target = out.has_filename() ? out : out.parent_path();  // "OUT/" is OUT
  NIBBLE_ASSIGN_OR_RETURN(const gemma::Config config, gemma::ReadConfig(source));
  NIBBLE_ASSIGN_OR_RETURN(const std::string config_text, ReadTextFile(source / "config.json"));
  NIBBLE_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(source));
  NIBBLE_ASSIGN_OR_RETURN(const Plan plan, MakePlan(checkpoint, config, options));
  RepackReport report = BeginReport(plan, options, config_text);
  report.source_fingerprint = checkpoint::Fingerprint(checkpoint);
  if (options.dry_run) return report;
  NIBBLE_RETURN_IF_ERROR(CheckMemoryLimit(options.max_memory_bytes, LeastMemoryBytes(plan)));
  NIBBLE_ASSIGN_OR_RETURN(const Json made,
                          WhatIsMade(checkpoint, report.source_config_sha256, options));
  NIBBLE_ASSIGN_OR_RETURN(
      OutputDirectory directory,
      OutputDirectory::Open(target, made, report.output_bytes(), options.resume));
  const Status written = WriteAll(source, config, plan, options, progress, &directory, &report);
  if (written.has_value()) return report;
  std::error_code error;
  const bool is_resumable = fs::exists(directory.path(), error);
  return Fail("{}{}", written.error().message,
              is_resumable ? "; --resume goes on from what is finished" : "");
}

}  // namespace nibble::repack
