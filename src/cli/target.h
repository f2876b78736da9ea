// TARGET of `eval` and `bench`: a model that runs in this process, or a server by its URL.
#pragma once

#include <memory>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "cli/engine_flags.h"
#include "measure/http_target.h"
#include "measure/target.h"
#include "text/tokenizer.h"

namespace nibble::cli {

struct TargetFlags {
  EngineFlags engine;             // engine.model: the directory, file or URL
  measure::ServerOptions server;  // where it is a URL
  std::string server_log;         // "": none
};

// AddEngineFlags(), and --model, --timeout, --attempts, --server-log for servers.
void AddTargetFlags(CLI::App* command, TargetFlags* flags);

bool IsUrl(const std::string& target);

struct OpenedTarget {
  OpenedModel model;  // empty for a server
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<measure::Target> target;
  // Who was asked: what a run that goes on must find again.
  Json identity;
  // What else is known: bytes and anatomy of the weights, load time; what a server tells.
  Json facts;
};

Result<OpenedTarget> OpenTarget(const TargetFlags& flags);

// Of a model directory or file, as OpenedTarget::identity and OpenedTarget::facts have them.
Result<Json> IdentityOf(const EngineFlags& flags);
Result<Json> FactsOf(const EngineFlags& flags, const OpenedModel& model);

// The time as manifests have it: "2026-11-30T04:00:00Z".
std::string Now();

}  // namespace nibble::cli
