#include "cli/target.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/gguf_file.h"
#include "cli/model_files.h"
#include "measure/engine_target.h"
#include "repack/inspect.h"
#include "text/chat.h"

namespace nibble::cli {
namespace {

Result<std::string> FingerprintOf(const std::filesystem::path& model) {
  if (checkpoint::IsGgufPath(model)) {
    NIBBLE_ASSIGN_OR_RETURN(const auto file, checkpoint::GgufFile::Open(model));
    return Fingerprint(file);
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto opened, checkpoint::Checkpoint::Open(model));
  return Fingerprint(opened);
}

// What nibble-report.json says of the source that a build was packed from; null without one.
Json SourceFingerprint(const std::filesystem::path& model) {
  const Result<Json> report = ReadJsonFile(model / "nibble-report.json");
  if (!report.has_value() || !report->contains("source")) return nullptr;
  return (*report)["source"].value("fingerprint", Json());
}

}  // namespace

bool IsUrl(const std::string& target) {
  return target.starts_with("http://") || target.starts_with("https://");
}

Result<OpenedTarget> OpenTarget(const EngineFlags& flags) {
  OpenedTarget opened;
  NIBBLE_ASSIGN_OR_RETURN(opened.model, OpenModel(flags));
  NIBBLE_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, OpenTokenizer(flags.model));
  opened.tokenizer = std::make_unique<text::Tokenizer>(std::move(tokenizer));
  text::ChatOptions chat;
  NIBBLE_ASSIGN_OR_RETURN(chat.closes_empty_thought, ClosesEmptyThought(flags.model));
  NIBBLE_ASSIGN_OR_RETURN(std::vector<int32_t> stop_ids, StopTokens(flags.model));
  opened.target = std::make_unique<measure::EngineTarget>(*opened.model.engine, *opened.tokenizer,
                                                          chat, std::move(stop_ids));
  NIBBLE_ASSIGN_OR_RETURN(const std::string fingerprint, FingerprintOf(flags.model));
  NIBBLE_ASSIGN_OR_RETURN(const repack::Anatomy anatomy,
                          repack::Inspect(flags.model, /*with_grid=*/false, 1, {}));
  opened.identity = {{"kind", "engine"},
                     {"fingerprint", fingerprint},
                     {"source_fingerprint", SourceFingerprint(flags.model)},
                     {"format", anatomy.format},
                     {"activations", Name(flags.options.activations)},
                     {"kv", Name(flags.options.kv_format)}};
  opened.facts = {{"model", flags.model},
                  {"nibble", NIBBLE_VERSION},
                  {"kernels", opened.model.kernels->name},
                  {"threads", flags.n_threads},
                  {"load_s", opened.model.load_s},
                  {"anatomy", anatomy.ToJson()}};
  return opened;
}

}  // namespace nibble::cli
