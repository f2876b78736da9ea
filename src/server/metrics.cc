#include "server/metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "server/served_model.h"

namespace nibble::server {
namespace {

// vLLM's bounds, so that its dashboards show the same buckets.
const std::vector<double> kFirstTokenBounds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                               0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                               20,    40,    80,   160,  640,  2560};
const std::vector<double> kTokenGapBounds = {
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
const std::vector<double> kTotalBounds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                          30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTokensBounds = {1,   2,    5,    10,   20,    50,    100,   200,
                                           500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

void WriteHead(std::string_view name, std::string_view type, std::string_view help,
               std::string* text) {
  fmt::format_to(std::back_inserter(*text), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

template <typename T>
void WriteValue(std::string_view name, std::string_view labels, T value, std::string* text) {
  fmt::format_to(std::back_inserter(*text), "{}{{{}}} {}\n", name, labels, value);
}

template <typename T>
void Write(std::string_view name, std::string_view type, std::string_view help,
           std::string_view labels, T value, std::string* text) {
  WriteHead(name, type, help, text);
  WriteValue(name, labels, value, text);
}

// A label's value: backslashes, quotes and line breaks escaped.
std::string Escaped(std::string_view value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text += '\\';
    if (c == '\n') {
      text += "\\n";
    } else {
      text += c;
    }
  }
  return text;
}

// Pages of both kinds; where there is no bound, of what is held now.
double KvUsage(const engine::Stats& stats) {
  const int64_t bound = stats.kv_budget_bytes > 0 ? stats.kv_budget_bytes
                                                  : stats.kv_used_bytes + stats.kv_cached_bytes;
  return bound == 0 ? 0 : static_cast<double>(stats.kv_used_bytes) / static_cast<double>(bound);
}

void WriteEngine(const ServedModel& model, std::string_view labels, std::string* text) {
  const engine::Stats stats = model.engine->stats();
  Write("vllm:num_requests_running", "gauge", "Requests in the running batch.", labels,
        stats.n_running, text);
  Write("vllm:num_requests_waiting", "gauge", "Requests waiting for the batch.", labels,
        stats.n_waiting, text);
  Write("vllm:kv_cache_usage_perc", "gauge", "Share of the KV budget in use, 1 is all.", labels,
        KvUsage(stats), text);
  Write("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.", labels,
        stats.n_prefix_query_tokens, text);
  Write("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found.", labels,
        stats.n_prefix_hit_tokens, text);
  Write("vllm:num_preemptions_total", "counter", "Requests that gave up their pages.", labels,
        stats.n_preemptions, text);

  WriteHead("nibble_kv_pages", "gauge", "Pages of keys and values.", text);
  for (const auto& [kind, pages] :
       {std::pair("sliding", stats.sliding), std::pair("full", stats.full)}) {
    const auto add = [&](std::string_view state, int64_t n) {
      WriteValue("nibble_kv_pages", fmt::format("{},kind=\"{}\",state=\"{}\"", labels, kind, state),
                 n, text);
    };
    add("used", pages.n_used);
    add("cached", pages.n_cached);
  }
  WriteHead("nibble_kv_bytes", "gauge", "Bytes of keys and values; budget 0: no bound.", text);
  const auto add_bytes = [&](std::string_view state, int64_t n_bytes) {
    WriteValue("nibble_kv_bytes", fmt::format("{},state=\"{}\"", labels, state), n_bytes, text);
  };
  add_bytes("used", stats.kv_used_bytes);
  add_bytes("cached", stats.kv_cached_bytes);
  add_bytes("budget", stats.kv_budget_bytes);
  WriteHead("nibble_weight_bytes", "gauge", "Bytes of the weights, by part and type.", text);
  for (const WeightPart& part : model.weights) {
    WriteValue(
        "nibble_weight_bytes",
        fmt::format("{},part=\"{}\",dtype=\"{}\"", labels, Escaped(part.part), Escaped(part.dtype)),
        part.n_bytes, text);
  }
}

void WriteProcess(std::string* text) {
  std::ifstream statm("/proc/self/statm");
  int64_t n_total_pages = 0;
  int64_t n_resident_pages = 0;
  statm >> n_total_pages >> n_resident_pages;
  WriteHead("process_resident_memory_bytes", "gauge", "Resident memory.", text);
  fmt::format_to(std::back_inserter(*text), "process_resident_memory_bytes {}\n",
                 n_resident_pages * ::sysconf(_SC_PAGESIZE));
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  WriteHead("process_cpu_seconds_total", "counter", "User and system time.", text);
  fmt::format_to(std::back_inserter(*text), "process_cpu_seconds_total {}\n",
                 seconds(usage.ru_utime) + seconds(usage.ru_stime));
}

}  // namespace

void Histogram::Observe(double value) {
  const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
  ++counts_[bucket];
  sum_ += value;
}

void Histogram::Write(std::string_view name, std::string_view help, std::string_view labels,
                      std::string* text) const {
  WriteHead(name, "histogram", help, text);
  uint64_t n_so_far = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    n_so_far += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    WriteValue(fmt::format("{}_bucket", name), fmt::format("{},le=\"{}\"", labels, bound), n_so_far,
               text);
  }
  WriteValue(fmt::format("{}_sum", name), labels, sum_, text);
  WriteValue(fmt::format("{}_count", name), labels, n_so_far, text);
}

Metrics::Metrics()
    : first_token_s_(kFirstTokenBounds),
      token_gap_s_(kTokenGapBounds),
      total_s_(kTotalBounds),
      prompt_tokens_(kTokensBounds),
      generated_tokens_(kTokensBounds) {}

void Metrics::CountRequest(const RequestRecord& record) {
  const std::lock_guard lock(mutex_);
  for (const std::string& reason : record.finish_reasons) ++n_by_finish_[reason];
  if (record.first_token_s >= 0) first_token_s_.Observe(record.first_token_s);
  total_s_.Observe(record.total_s);
  prompt_tokens_.Observe(static_cast<double>(record.n_prompt_tokens));
  generated_tokens_.Observe(static_cast<double>(record.n_completion_tokens));
}

void Metrics::CountTokenGap(double seconds) {
  const std::lock_guard lock(mutex_);
  token_gap_s_.Observe(seconds);
}

void Metrics::CountTokens(int64_t n_prompt, int64_t n_generated) {
  const std::lock_guard lock(mutex_);
  n_prompt_tokens_ += n_prompt;
  n_generated_tokens_ += n_generated;
}

void Metrics::CountResponse(int status) {
  const std::lock_guard lock(mutex_);
  ++n_by_status_[status];
}

std::string Metrics::Text(const ServedModel* model) const {
  std::string text;
  const std::string labels =
      fmt::format("model_name=\"{}\"", model == nullptr ? "" : Escaped(model->names[0]));
  if (model != nullptr) WriteEngine(*model, labels, &text);
  {
    const std::lock_guard lock(mutex_);
    Write("vllm:prompt_tokens_total", "counter", "Prompt tokens.", labels, n_prompt_tokens_, &text);
    Write("vllm:generation_tokens_total", "counter", "Generated tokens.", labels,
          n_generated_tokens_, &text);
    WriteHead("vllm:request_success_total", "counter", "Answers, by how they ended.", &text);
    for (const std::string_view reason : {"stop", "length", "tool_calls", "abort"}) {
      const auto found = n_by_finish_.find(std::string(reason));
      WriteValue("vllm:request_success_total",
                 fmt::format("{},finished_reason=\"{}\"", labels, reason),
                 found == n_by_finish_.end() ? 0 : found->second, &text);
    }
    first_token_s_.Write("vllm:time_to_first_token_seconds", "From request to first token.", labels,
                         &text);
    token_gap_s_.Write("vllm:inter_token_latency_seconds", "Between two tokens of an answer.",
                       labels, &text);
    total_s_.Write("vllm:e2e_request_latency_seconds", "From request to last token.", labels,
                   &text);
    prompt_tokens_.Write("vllm:request_prompt_tokens", "Prompt tokens of a request.", labels,
                         &text);
    generated_tokens_.Write("vllm:request_generation_tokens", "Generated tokens of a request.",
                            labels, &text);
    WriteHead("nibble_http_responses_total", "counter", "Responses, by status.", &text);
    for (const auto& [status, n] : n_by_status_) {
      WriteValue("nibble_http_responses_total", fmt::format("status=\"{}\"", status), n, &text);
    }
  }
  WriteProcess(&text);
  return text;
}

}  // namespace nibble::server
