#include "measure/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/sha256.h"
#include "measure/statistics.h"

namespace nibble::measure {
namespace {

constexpr size_t kPromptIdsKept = 5;
constexpr int32_t kBosId = 2;  // Gemma's

Json ToJson(const Query& query) {
  Json messages = Json::array();
  for (const Message& message : query.messages) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  return {{"messages", std::move(messages)},
          {"answer_lead", query.answer_lead},
          {"text", query.text},
          {"tools", query.tools_json},
          {"max_tokens", query.max_tokens},
          {"ignore_eos", query.ignore_eos},
          {"top_logprobs", query.n_top_logprobs},
          {"reads_prompt", query.reads_prompt}};
}

std::string HashOf(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return Sha256Hex(std::as_bytes(std::span(text)));
}

Json ToJson(const std::vector<ToolCall>& calls) {
  Json json = Json::array();
  for (const ToolCall& call : calls) {
    json.push_back({{"name", call.name}, {"arguments", call.arguments_json}});
  }
  return json;
}

// A score of nothing or of everything is more often a broken run than a model (a wrong template,
// a judge that matches anything).
void AddFlags(Json& summary, double n_correct, size_t n) {
  if (n > 1 && n_correct == 0) summary["flags"].push_back("no answer is right: check the setup");
  if (n > 1 && n_correct == static_cast<double>(n)) {
    summary["flags"].push_back("every answer is right: the suite cannot show a difference");
  }
}

// Calibration of the suite `choice`, perplexity of the suite `kl`.
void AddLikelihoods(Json* summary, std::span<const Json> records) {
  std::vector<Forecast> forecasts;
  std::vector<double> logprobs;
  int64_t n_labels = 0;
  int64_t n_returned = 0;
  for (const Json& record : records) {
    if (record.contains("probabilities")) {
      forecasts.push_back({.probabilities = record["probabilities"], .gold = record["gold"]});
      n_labels += static_cast<int64_t>(record["labels"].size());
      n_returned += record["labels_returned"].get<int64_t>();
    }
    for (const Json& logprob : record.value("logprobs", Json::array())) {
      if (logprob.is_number()) logprobs.push_back(logprob);
    }
  }
  if (!forecasts.empty()) {
    (*summary)["calibration_error"] = ExpectedCalibrationError(forecasts);
    (*summary)["brier_score"] = BrierScore(forecasts);
    (*summary)["labels_returned"] = {n_returned, n_labels};
  }
  if (!logprobs.empty()) {
    (*summary)["perplexity"] = std::exp(-Mean(logprobs));
    (*summary)["perplexity_tokens"] = logprobs.size();
  }
}

}  // namespace

std::string HashOf(const Query& query) { return HashOf(ToJson(query)); }

std::string HashOf(const Suite& suite) {
  Json all = Json::array({suite.name, suite.settings});
  for (const Item& item : suite.items) {
    all.push_back(Json::array({item.id, item.kind, ToJson(item.query), item.gold}));
  }
  return HashOf(all);
}

Json MakeRecord(const Suite& suite, const Item& item, const Reply& reply) {
  Json record = {{"id", item.id},
                 {"prompt_sha256", HashOf(item.query)},
                 {"answer", reply.text},
                 {"finish_reason", reply.finish_reason},
                 {"prompt_tokens", reply.n_prompt_tokens},
                 {"completion_tokens", reply.n_completion_tokens},
                 {"time_s", reply.time_s}};
  if (!item.kind.empty()) record["kind"] = item.kind;
  if (!reply.tool_calls.empty()) record["tool_calls"] = ToJson(reply.tool_calls);
  if (!reply.prompt_ids.empty()) {
    const size_t n_kept = std::min(kPromptIdsKept, reply.prompt_ids.size());
    record["first_prompt_ids"] = std::span(reply.prompt_ids).first(n_kept);
    record["bos_count"] = std::ranges::count(reply.prompt_ids, kBosId);
  }
  if (!reply.token_ids.empty()) record["token_ids"] = reply.token_ids;
  if (reply.n_cached_tokens > 0) record["cached_tokens"] = reply.n_cached_tokens;
  if (reply.n_attempts > 1) record["attempts"] = reply.n_attempts;
  record.update(suite.judge(item, reply));
  return record;
}

Json Summarize(std::string_view suite_name, std::span<const Json> records) {
  Json summary = {{"suite", suite_name}, {"n", records.size()}, {"flags", Json::array()}};
  std::map<std::string, std::pair<double, int64_t>> kinds;  // right, all
  double n_correct = 0;
  size_t n_scored = 0;
  int64_t n_prompt = 0;
  int64_t n_completion = 0;
  std::vector<int> bos_counts;
  for (const Json& record : records) {
    n_prompt += record.value("prompt_tokens", int64_t{0});
    n_completion += record.value("completion_tokens", int64_t{0});
    if (record.contains("bos_count")) bos_counts.push_back(record["bos_count"]);
    if (!record.contains("score")) continue;
    const double score = record["score"];
    ++n_scored;
    n_correct += score;
    if (!record.contains("kind")) continue;
    auto& [n_right, n_all] = kinds[record["kind"]];
    n_right += score;
    ++n_all;
  }
  AddLikelihoods(&summary, records);
  summary["prompt_tokens"] = n_prompt;
  summary["completion_tokens"] = n_completion;
  if (!bos_counts.empty()) {
    const auto [least, most] = std::ranges::minmax(bos_counts);
    summary["bos_count"] = {least, most};
    if (least != 1 || most != 1) {
      summary["flags"].push_back(
          fmt::format("<bos> stands {} to {} times in a prompt, once is right", least, most));
    }
  }
  if (n_scored == 0) return summary;
  const Interval interval = WilsonInterval(std::llround(n_correct), n_scored);
  summary["correct"] = n_correct;
  summary["accuracy"] = n_correct / static_cast<double>(n_scored);
  summary["interval"] = {interval.low, interval.high};
  summary["kinds"] = Json::object();
  for (const auto& [kind, counts] : kinds) {
    summary["kinds"][kind] = {{"correct", counts.first}, {"total", counts.second}};
  }
  AddFlags(summary, n_correct, n_scored);
  return summary;
}

}  // namespace nibble::measure
