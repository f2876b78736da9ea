#include "server/request_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>

#include "base/json.h"

namespace nibble::server {
namespace {

std::string Now() {
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const auto ms = now.time_since_epoch().count() % 1000;
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)), ms);
}

std::string TextLine(const LogEntry& entry) {
  std::string line = fmt::format("{} {} {} {} {}", Now(), entry.client, entry.method,
                                 QuoteForMessage(entry.path), entry.status);
  const auto out = std::back_inserter(line);
  if (!entry.id.empty()) {
    const RequestRecord& record = entry.record;
    fmt::format_to(out, " id={} prompt={} cached={} tokens={}", entry.id, record.n_prompt_tokens,
                   record.n_cached_tokens, record.n_completion_tokens);
    if (record.first_token_s >= 0) fmt::format_to(out, " first={:.3f}s", record.first_token_s);
    fmt::format_to(out, " total={:.3f}s finish={}", record.total_s,
                   fmt::join(record.finish_reasons, ","));
  }
  if (!entry.error.empty()) fmt::format_to(out, " error={}", QuoteForMessage(entry.error));
  if (!entry.prompt.empty()) fmt::format_to(out, " text={}", Json(entry.prompt).dump());
  return line;
}

std::string JsonLine(const LogEntry& entry) {
  Json json = {{"time", Now()},
               {"client", entry.client},
               {"method", entry.method},
               {"path", entry.path},
               {"status", entry.status}};
  if (!entry.id.empty()) {
    const RequestRecord& record = entry.record;
    json["id"] = entry.id;
    json["prompt_tokens"] = record.n_prompt_tokens;
    json["cached_tokens"] = record.n_cached_tokens;
    json["completion_tokens"] = record.n_completion_tokens;
    json["first_token_s"] = record.first_token_s >= 0 ? Json(record.first_token_s) : Json();
    json["total_s"] = record.total_s;
    json["finish_reasons"] = record.finish_reasons;
  }
  if (!entry.error.empty()) json["error"] = entry.error;
  if (!entry.prompt.empty()) json["prompt"] = entry.prompt;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void RequestLog::Write(const LogEntry& entry) const {
  if (options_.lines == nullptr) return;
  LogEntry shown = entry;
  if (!options_.shows_prompts) shown.prompt.clear();
  options_.lines->Write(options_.json ? JsonLine(shown) : TextLine(shown));
}

}  // namespace nibble::server
