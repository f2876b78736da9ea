// nibble serve MODEL: an OpenAI-compatible server, a web page at /, metrics at /metrics.
#include <fmt/format.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/checksums.h"
#include "checkpoint/gguf_file.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/model_files.h"
#include "cli/units.h"
#include "grammar/vocabulary.h"
#include "repack/inspect.h"
#include "server/default_sampling.h"
#include "server/http.h"
#include "server/line_writer.h"
#include "server/service.h"

namespace nibble::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct ServeFlags {
  EngineFlags engine;
  std::vector<std::string> names;
  std::string kv_memory = "4GiB";
  int max_queue = 64;
  bool thinking = false;
  bool checks_files = true;
  double drain_s = 30;
  server::HttpOptions http;
  server::ServiceOptions service;
  uint64_t max_body_mb = http.max_body_bytes >> 20;
  double ping_s = std::chrono::duration<double>(http.ping_interval).count();
};

constexpr std::string_view kEnvironmentPrefix = "NIBBLE_SERVE_";

// --max-queue is also NIBBLE_SERVE_MAX_QUEUE: containers get nothing but an environment.
std::string EnvironmentName(const CLI::Option& option) {
  std::string name(kEnvironmentPrefix);
  const std::string& flag = option.get_single_name();
  for (const char c : flag.substr(std::min(flag.find_first_not_of('-'), flag.size()))) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// A variable that names no option is a mistake that would otherwise pass in silence.
Status CheckEnvironment(const CLI::App& command) {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(kEnvironmentPrefix)) continue;
    bool is_known = false;
    for (const CLI::Option* option : command.get_options()) {
      is_known |= option->get_envname() == name;
    }
    if (!is_known) return Fail("environment: {}: there is no such option", name);
  }
  return {};
}

// The name that clients ask for: the directory's, or the file's without .gguf.
std::string NameOf(const std::string& model) {
  std::filesystem::path path = std::filesystem::weakly_canonical(model);
  if (path.extension() == ".gguf") path.replace_extension();
  return path.filename().string();
}

Result<std::vector<server::WeightPart>> WeightParts(const ServeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(
      const repack::Anatomy anatomy,
      repack::Inspect(flags.engine.model, /*with_grid=*/false, flags.engine.n_threads, {}));
  std::vector<server::WeightPart> parts;
  for (const repack::PartAnatomy& part : anatomy.parts) {
    for (const auto& [dtype, n_bytes] : part.bytes_by_dtype) {
      parts.push_back({.part = part.part, .dtype = dtype, .n_bytes = n_bytes});
    }
  }
  return parts;
}

// Everything that the service needs of the model; `opened` stays alive behind its engine.
Result<server::ServedModel> MakeModel(const ServeFlags& flags, const OpenedModel& opened) {
  const std::string& path = flags.engine.model;
  NIBBLE_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, OpenTokenizer(path));
  server::ServedModel model{.names = flags.names, .tokenizer = std::move(tokenizer)};
  model.created_s = std::chrono::duration_cast<std::chrono::seconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
  model.chat.enable_thinking = flags.thinking;
  model.context_tokens = opened.engine->context_tokens();
  model.n_token_ids = opened.weights->n_token_ids();
  if (model.names.empty()) model.names.push_back(NameOf(path));
  NIBBLE_ASSIGN_OR_RETURN(model.chat.closes_empty_thought, ClosesEmptyThought(path));
  NIBBLE_ASSIGN_OR_RETURN(model.sampling, server::ReadDefaultSampling(path));
  NIBBLE_ASSIGN_OR_RETURN(model.stop_ids, StopTokens(path));
  NIBBLE_ASSIGN_OR_RETURN(model.weights, WeightParts(flags));
  // A tokenizer that cannot write every text serves without structured output.
  auto vocabulary = grammar::Vocabulary::Make(model.tokenizer);
  if (vocabulary.has_value()) {
    model.grammars = std::make_unique<server::GrammarCache>(
        std::make_shared<const grammar::Vocabulary>(*std::move(vocabulary)));
  }
  model.engine = std::make_unique<server::EngineThread>(
      server::DriveEngine(*opened.engine), flags.engine.options.max_sequences + flags.max_queue);
  return model;
}

// A model that is loading or serving, and what went wrong with it.
struct Loading {
  OpenedModel opened;
  Status status;
  std::atomic<bool> done = false;
};

// Beside the loading, which reads the same files: one thread's work.
std::future<Status> CheckFiles(const ServeFlags& flags) {
  const bool has_sums = flags.checks_files && !checkpoint::IsGgufPath(flags.engine.model);
  return std::async(std::launch::async, [has_sums, model = flags.engine.model] {
    return has_sums ? checkpoint::CheckSha256Sums(model) : Status();
  });
}

Status Load(const ServeFlags& flags, server::Service& service, OpenedModel* opened) {
  std::future<Status> checksums = CheckFiles(flags);
  NIBBLE_ASSIGN_OR_RETURN(*opened, OpenModel(flags.engine));
  NIBBLE_ASSIGN_OR_RETURN(server::ServedModel model, MakeModel(flags, *opened));
  NIBBLE_RETURN_IF_ERROR(checksums.get());
  flags.service.log.lines->Write(fmt::format(
      "{}: loaded in {:.1f} s, {} kernels, {} threads; context {} tokens, {} for keys and values",
      model.names[0], opened->load_s, opened->kernels->name, flags.engine.n_threads,
      model.context_tokens, flags.kv_memory));
  return service.Start(std::move(model));
}

// Connections cost a descriptor each.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Until a signal, or the loading failed, or (while it drains) all is answered or the time is over.
// A second signal exits at once.
Status WaitForEnd(const ServeFlags& flags, const sigset_t& signals, Loading& loading,
                  server::Service& service, server::HttpServer& http) {
  std::optional<Clock::time_point> end;
  while (true) {
    constexpr timespec kTick = {.tv_sec = 0, .tv_nsec = 50'000'000};
    const int signal = ::sigtimedwait(&signals, nullptr, &kTick);
    const bool is_loading = !loading.done;
    if (signal > 0) {
      if (is_loading) std::_Exit(kDone);  // nothing was promised to anybody yet
      if (end.has_value()) std::_Exit(128 + signal);
      flags.service.log.lines->Write(
          fmt::format("shutting down: {} requests are being answered", http.n_exchanges()));
      service.Drain();
      http.Drain();
      end = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(flags.drain_s * 1000));
    }
    if (!is_loading && !loading.status.has_value()) return loading.status;
    if (end.has_value() && (http.n_exchanges() == 0 || Clock::now() > *end)) return {};
  }
}

Result<int> Serve(ServeFlags flags) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // in every thread that comes
  std::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  NIBBLE_ASSIGN_OR_RETURN(const uint64_t kv_bytes, ParseSize(flags.kv_memory));
  flags.engine.options.kv_budget_bytes = static_cast<int64_t>(kv_bytes);
  flags.http.max_body_bytes = flags.max_body_mb << 20;
  flags.http.ping_interval = std::chrono::milliseconds(static_cast<int64_t>(flags.ping_s * 1000));

  server::LineWriter log(STDERR_FILENO);
  flags.service.log.lines = &log;
  Loading loading;  // outlives the service, whose engine it holds
  server::Service service(flags.service);
  NIBBLE_ASSIGN_OR_RETURN(const auto http, server::HttpServer::Listen(flags.http, service));
  const std::string_view host = flags.http.host;
  log.Write(fmt::format("listening on http://{}:{}", host, http->port()));
  std::thread loader([&] {
    loading.status = Load(flags, service, &loading.opened);
    if (loading.status.has_value()) log.Write("ready");
    loading.done = true;
  });
  const Status end = WaitForEnd(flags, signals, loading, service, *http);
  loader.join();
  NIBBLE_RETURN_IF_ERROR(end);
  return kDone;
}

void AddBatchFlags(CLI::App* command, ServeFlags* flags) {
  engine::EngineOptions& options = flags->engine.options;
  options.prefix_cache = true;
  command->add_option("--max-num-seqs", options.max_sequences, "Requests that run at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--max-model-len", options.context_tokens,
                   "Tokens of prompt and answer; default: as many as the model and memory allow")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--kv-memory", flags->kv_memory,
                   "Bytes for keys and values, those kept for later prompts included, as in 4GiB")
      ->capture_default_str();
  command->add_flag("!--no-prefix-cache", options.prefix_cache,
                    "Compute every prompt from its beginning");
}

void AddServiceFlags(CLI::App* command, ServeFlags* flags) {
  command->add_option("--host", flags->http.host, "Address to listen on; 0.0.0.0: all")
      ->capture_default_str();
  command->add_option("--port", flags->http.port, "0: any that is free")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      ->add_option("--api-key", flags->service.api_keys,
                   "Refuse requests without this key; several may be given")
      ->delimiter(',');
  command
      ->add_option("--served-model-name", flags->names,
                   "Names that requests may ask for; default: the directory's")
      ->delimiter(',');
  command->add_option("--cors-origin", flags->service.cors_origin,
                      "Let web pages of this origin call; *: of any");
  command->add_flag("--thinking", flags->thinking, "Let the model think unless a request says no");
  command->add_flag("!--no-checksums", flags->checks_files,
                    "Serve without a look at whether the files are those of SHA256SUMS");
  command->add_option("--max-queue", flags->max_queue, "Requests that may wait; others get 429")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-connections", flags->http.max_connections, "Further ones get 503")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-body-mb", flags->max_body_mb, "Larger bodies get 413")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--max-buffered-tokens", flags->service.max_buffered_tokens,
                   "Of one answer, that its client has not read; beyond, the answer ends")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--ping-interval", flags->ping_s, "Seconds between comments in silent streams")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  command->add_option("--drain-timeout", flags->drain_s, "Seconds for running answers on SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command->add_flag("--log-json", flags->service.log.json, "Log lines as JSON");
  command->add_flag("--log-prompts", flags->service.log.shows_prompts, "Log what was asked, too");
}

}  // namespace

void AddServe(CLI::App& root, Action* action) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = root.add_subcommand(
      "serve", "OpenAI-compatible server; every option is also a variable NIBBLE_SERVE_OPTION");
  AddEngineFlags(command, &flags->engine);
  AddBatchFlags(command, flags.get());
  AddServiceFlags(command, flags.get());
  for (CLI::Option* option : command->get_options()) {
    if (option != command->get_help_ptr()) option->envname(EnvironmentName(*option));
  }
  command->callback([flags, command, action] {
    *action = [flags, command]() -> Result<int> {
      NIBBLE_RETURN_IF_ERROR(CheckEnvironment(*command));
      return Serve(*flags);
    };
  });
}

}  // namespace nibble::cli
