#include "measure/http_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/stopwatch.h"
#include "measure/openai.h"

namespace nibble::measure {
namespace {

constexpr double kMostBackOffS = 8;

// Worth asking again: full for the moment, or at fault itself.
bool IsPassing(int status) { return status == 408 || status == 429 || status >= 500; }

std::string Root(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.resize(url.size() - 3);
  return url;
}

// The value of the first sample of a Prometheus metric, or of one of its labels.
std::string LabelOf(std::string_view metrics, std::string_view metric, std::string_view label) {
  for (size_t at = metrics.find(metric); at != metrics.npos; at = metrics.find(metric, at + 1)) {
    if (at > 0 && metrics[at - 1] != '\n') continue;  // in a comment
    const std::string_view line = metrics.substr(at, metrics.find('\n', at) - at);
    const std::string key = fmt::format("{}=\"", label);
    const size_t begin = line.find(key);
    if (begin == line.npos) continue;
    const size_t value = begin + key.size();
    return std::string(line.substr(value, line.find('"', value) - value));
  }
  return "";
}

Json KnownOr(const Json& object, const char* pointer) {
  const Json::json_pointer place(pointer);
  return object.contains(place) ? object.at(place) : Json("unknown");
}

// {"bytes", "parts": [{"part", "bytes"}]} of a list of parts by type.
Json AnatomyOf(const Json& entries) {
  int64_t n_all_bytes = 0;
  std::map<std::string, int64_t> n_bytes_of;
  for (const Json& entry : entries) {
    const Json n_bytes = entry.is_object() ? entry.value("bytes", Json()) : Json();
    if (!n_bytes.is_number_integer() || !entry.value("part", Json()).is_string()) continue;
    n_all_bytes += n_bytes.get<int64_t>();
    n_bytes_of[entry["part"]] += n_bytes.get<int64_t>();
  }
  Json parts = Json::array();
  for (const auto& [part, n_bytes] : n_bytes_of) {
    parts.push_back({{"part", part}, {"bytes", n_bytes}});
  }
  return {{"bytes", n_all_bytes}, {"parts", std::move(parts)}};
}

}  // namespace

HttpRequest HttpTarget::Request(const std::string& path) const {
  return {.url = options_.url + path,
          .bearer_token = options_.api_key,
          .timeout_s = options_.timeout_s};
}

Result<Json> HttpTarget::Get(HttpClient& client, const std::string& path) const {
  NIBBLE_ASSIGN_OR_RETURN(const HttpResponse response, client.Send(Request(path)));
  if (response.status != 200) {
    return Fail("{}{}: status {}: {}", options_.url, path, response.status,
                ErrorMessage(response.body));
  }
  return ParseJson(response.body, options_.url + path);
}

Result<std::unique_ptr<HttpTarget>> HttpTarget::Connect(ServerOptions options) {
  options.url = Root(std::move(options.url));
  std::unique_ptr<HttpTarget> target(new HttpTarget(std::move(options)));
  HttpClient client;
  NIBBLE_ASSIGN_OR_RETURN(const Json models, target->Get(client, "/v1/models"));
  const std::string where = target->options_.url + "/v1/models";
  if (!models.contains("data") || !models["data"].is_array() || models["data"].empty()) {
    return Fail("{}: lists no model", where);
  }
  std::string listed;
  for (const Json& card : models["data"]) {
    const std::string id = card.is_object() ? card.value("id", "") : "";
    if (target->options_.model.empty()) target->options_.model = id;
    if (id == target->options_.model) target->model_card_ = card;
    listed += (listed.empty() ? "" : ", ") + id;
  }
  if (!target->model_card_.is_object()) {
    return Fail("{}: has no model {}; it has {}", where, target->options_.model, listed);
  }
  return target;
}

Json HttpTarget::BodyOf(const Query& query) const {
  Json body = RequestBody(query, options_.model);
  // What goes beyond OpenAI's API is sent to those that know it; others may refuse it.
  const std::string server = model_card_.value("owned_by", "");
  const bool is_chat = !query.messages.empty();
  if (is_chat && (server == "vllm" || server == "llamacpp" || server == "nibble")) {
    body["chat_template_kwargs"] = {{"enable_thinking", false}};
  }
  if (server == "vllm" && !query.stream) body["return_token_ids"] = true;
  // Else it takes what follows a prompt without thoughts for one.
  if (is_chat && server == "llamacpp" && query.tools_json.empty()) {
    body["reasoning_format"] = "none";
  }
  return body;
}

Result<Reply> HttpTarget::AskServer(HttpClient& client, const Query& query,
                                    const std::atomic<bool>& stopped) {
  HttpRequest request =
      Request(query.messages.empty() ? "/v1/completions" : "/v1/chat/completions");
  request.body = BodyOf(query).dump(-1, ' ', false, Json::error_handler_t::replace);
  double back_off_s = options_.first_back_off_s;
  for (int attempt = 1;; ++attempt) {
    const Stopwatch stopwatch;
    StreamedReply streamed;
    double first_token_s = 0;
    if (query.stream) {
      request.on_piece = [&](std::string_view piece) {
        if (streamed.Push(piece)) first_token_s = stopwatch.seconds();
        return !stopped;
      };
    }
    Result<HttpResponse> response = client.Send(request);
    if (response.has_value() && response->status == 200) {
      NIBBLE_ASSIGN_OR_RETURN(Reply reply,
                              query.stream ? streamed.Finish() : ParseReply(response->body, query));
      reply.time_s = stopwatch.seconds();
      reply.first_token_s = first_token_s;
      reply.n_attempts = attempt;
      return reply;
    }
    Error error = response.has_value()
                      ? Error{fmt::format("{}: status {}: {}", request.url, response->status,
                                          ErrorMessage(response->body))}
                      : response.error();
    if (response.has_value() && !IsPassing(response->status)) return std::unexpected(error);
    if (attempt >= options_.max_attempts || stopped) {
      error.message += fmt::format(" (asked {} times)", attempt);
      return std::unexpected(error);
    }
    const double told_s = response.has_value() ? response->retry_after_s : 0;
    std::this_thread::sleep_for(std::chrono::duration<double>(told_s > 0 ? told_s : back_off_s));
    back_off_s = std::min(2 * back_off_s, kMostBackOffS);
  }
}

void HttpTarget::AskAll(std::span<const Query> queries, int concurrency, const OnReply& on_reply) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> stopped = false;
  std::mutex reply_mutex;
  const auto ask = [&] {
    HttpClient client;
    for (size_t i = next++; i < queries.size() && !stopped; i = next++) {
      Result<Reply> reply = AskServer(client, queries[i], stopped);
      const std::lock_guard lock(reply_mutex);
      if (!stopped && !on_reply(i, std::move(reply))) stopped = true;
    }
  };
  const size_t n_threads = std::min(queries.size(), static_cast<size_t>(std::max(concurrency, 1)));
  std::vector<std::jthread> threads;
  threads.reserve(n_threads);
  for (size_t i = 0; i < n_threads; ++i) threads.emplace_back(ask);
}

Json HttpTarget::Facts() {
  HttpClient client;
  Json facts = {{"server", model_card_.value("owned_by", "unknown")},
                {"version", "unknown"},
                {"weights", "unknown"},
                {"kv_tokens", "unknown"},
                {"context_tokens", KnownOr(model_card_, "/max_model_len")}};
  if (model_card_.contains(Json::json_pointer("/meta/n_ctx"))) {
    facts["context_tokens"] = model_card_["meta"]["n_ctx"];
  }
  if (const Json parts = model_card_.value("weights", Json()); parts.is_array()) {  // nibble's
    facts["anatomy"] = AnatomyOf(parts);
    facts["weights"] = facts["anatomy"]["bytes"];
  }
  if (const Result<Json> version = Get(client, "/version")) {
    facts["version"] = KnownOr(*version, "/version");
  }
  if (const Result<Json> props = Get(client, "/props")) {  // llama.cpp's
    facts["version"] = KnownOr(*props, "/build_info");
    facts["weights"] = KnownOr(*props, "/model_path");
  }
  const Result<HttpResponse> metrics = client.Send(Request("/metrics"));
  if (metrics.has_value() && metrics->status == 200) {
    const std::string blocks = LabelOf(metrics->body, "vllm:cache_config_info", "num_gpu_blocks");
    const std::string tokens = LabelOf(metrics->body, "vllm:cache_config_info", "block_size");
    if (!blocks.empty() && blocks != "None" && !tokens.empty()) {
      facts["kv_tokens"] = std::atoll(blocks.c_str()) * std::atoll(tokens.c_str());
    }
  }
  return facts;
}

}  // namespace nibble::measure
