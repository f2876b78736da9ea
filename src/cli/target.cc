#include "cli/target.h"

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fingerprint.h"
#include "checkpoint/gguf_file.h"
#include "cli/model_files.h"
#include "measure/engine_target.h"
#include "measure/server_log.h"
#include "repack/gguf_inspect.h"
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

Result<repack::Anatomy> AnatomyOf(const std::filesystem::path& model) {
  if (checkpoint::IsGgufPath(model)) return repack::InspectGguf(model);
  return repack::Inspect(model, /*with_grid=*/false, 1, {});
}

// What nibble-report.json says of the source that a build was packed from; null without one.
Json SourceFingerprint(const std::filesystem::path& model) {
  const Result<Json> report = ReadJsonFile(model / "nibble-report.json");
  if (!report.has_value() || !report->contains("source")) return nullptr;
  return (*report)["source"].value("fingerprint", Json());
}

Result<OpenedTarget> OpenServer(const TargetFlags& flags) {
  measure::ServerOptions options = flags.server;
  options.url = flags.engine.model;
  if (const char* key = std::getenv("OPENAI_API_KEY"); key != nullptr) options.api_key = key;
  NIBBLE_ASSIGN_OR_RETURN(auto server, measure::HttpTarget::Connect(std::move(options)));
  OpenedTarget opened;
  opened.facts = server->Facts();
  opened.facts["url"] = flags.engine.model;
  opened.facts["measured_by"] = "nibble " NIBBLE_VERSION;
  if (!flags.server_log.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(const std::string log, ReadTextFile(flags.server_log));
    measure::AddVllmLogFacts(log, &opened.facts);
  }
  opened.identity = {
      {"kind", "server"}, {"server", opened.facts["server"]}, {"model", server->model()}};
  opened.target = std::move(server);
  return opened;
}

}  // namespace

void AddTargetFlags(CLI::App* command, TargetFlags* flags) {
  AddEngineFlags(command, &flags->engine);
  command->get_option("MODEL")->description(
      "Model directory or .gguf file, or the URL of an OpenAI-compatible server "
      "(OPENAI_API_KEY is sent to it)");
  command->add_option("--model", flags->server.model,
                      "Server: the model to ask; default: the first that it lists");
  command->add_option("--timeout", flags->server.timeout_s, "Server: seconds that a reply may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--attempts", flags->server.max_attempts,
                   "Server: how often a request is sent that meets no server or a full one")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("--server-log", flags->server_log,
                      "Server: vLLM's log, for its KV cache and the memory of its weights");
}

bool IsUrl(const std::string& target) {
  return target.starts_with("http://") || target.starts_with("https://");
}

Result<Json> IdentityOf(const EngineFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string fingerprint, FingerprintOf(flags.model));
  NIBBLE_ASSIGN_OR_RETURN(const repack::Anatomy anatomy, AnatomyOf(flags.model));
  return Json{{"kind", "engine"},
              {"fingerprint", fingerprint},
              {"source_fingerprint", SourceFingerprint(flags.model)},
              {"format", anatomy.format},
              {"activations", Name(flags.options.activations)},
              {"kv", Name(flags.options.kv_format)}};
}

Result<Json> FactsOf(const EngineFlags& flags, const OpenedModel& model) {
  NIBBLE_ASSIGN_OR_RETURN(const repack::Anatomy anatomy, AnatomyOf(flags.model));
  return Json{{"model", flags.model},           {"measured_by", "nibble " NIBBLE_VERSION},
              {"kernels", model.kernels->name}, {"threads", flags.n_threads},
              {"load_s", model.load_s},         {"anatomy", anatomy.ToJson()}};
}

Result<OpenedTarget> OpenTarget(const TargetFlags& flags) {
  if (IsUrl(flags.engine.model)) return OpenServer(flags);
  const std::string& path = flags.engine.model;
  OpenedTarget opened;
  NIBBLE_ASSIGN_OR_RETURN(opened.model, OpenModel(flags.engine));
  NIBBLE_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, OpenTokenizer(path));
  opened.tokenizer = std::make_unique<text::Tokenizer>(std::move(tokenizer));
  text::ChatOptions chat;
  NIBBLE_ASSIGN_OR_RETURN(chat.closes_empty_thought, ClosesEmptyThought(path));
  NIBBLE_ASSIGN_OR_RETURN(std::vector<int32_t> stop_ids, StopTokens(path));
  opened.target = std::make_unique<measure::EngineTarget>(*opened.model.engine, *opened.tokenizer,
                                                          chat, std::move(stop_ids));
  NIBBLE_ASSIGN_OR_RETURN(opened.identity, IdentityOf(flags.engine));
  NIBBLE_ASSIGN_OR_RETURN(opened.facts, FactsOf(flags.engine, opened.model));
  return opened;
}

std::string Now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%FT%TZ", &utc)};
}

}  // namespace nibble::cli
