#include "measure/server_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <string>

#include "base/stopwatch.h"
#include "measure/statistics.h"

namespace nibble::measure {
namespace {

constexpr double kMostCachedShare = 0.01;

class ServerBench {
 public:
  ServerBench(Target& target, const ServerSpeedOptions& options,
              const std::function<void(size_t, size_t)>& on_request)
      : target_(target), options_(options), on_request_(on_request) {
    n_all_ =
        options.contexts.size() * options.n_runs * 2 + options.long_prompts.size() * options.n_runs;
    for (const int n : options.batches) n_all_ += static_cast<size_t>(n) * (options.n_batches + 1);
  }

  // How many tokens a word is: the server counts, we only have words.
  Status Calibrate() {
    constexpr int kWords = 200;
    NIBBLE_ASSIGN_OR_RETURN(const Reply reply,
                            target_.Ask({.text = Words(kWords), .max_tokens = 1}));
    if (reply.n_prompt_tokens == 0) return Fail("the server counts no tokens (usage)");
    tokens_per_word_ = static_cast<double>(reply.n_prompt_tokens) / kWords;
    return {};
  }

  Json Decode(int n_context) {
    std::vector<double> times[2];
    std::vector<double> rates;
    const int lengths[2] = {options_.n_short_tokens, options_.n_long_tokens};
    for (int run = 0; run < options_.n_runs; ++run) {
      for (int i = 0; i < 2; ++i) {
        const Batch batch = Ask(1, n_context, lengths[i], /*stream=*/false);
        if (batch.replies.empty()) return FailedRow("decode", n_context, 1);
        times[i].push_back(batch.replies[0].time_s);
      }
      const double more_s = times[1].back() - times[0].back();
      if (more_s > 0) rates.push_back((lengths[1] - lengths[0]) / more_s);
    }
    if (Median(times[1]) <= Median(times[0])) {
      flags_.push_back(
          fmt::format("decode at {} tokens: {} tokens took no longer than {}: too "
                      "noisy, or answers stopped early",
                      n_context, lengths[1], lengths[0]));
      return FailedRow("decode", n_context, 1);
    }
    const double rate = (lengths[1] - lengths[0]) / (Median(times[1]) - Median(times[0]));
    Json row = Row("decode", n_context, 1, rates);
    row["tokens_per_s"] = rate;
    row["fixed_s"] = Median(times[0]) - lengths[0] / rate;
    row["short_s"] = times[0];
    row["long_s"] = times[1];
    return row;
  }

  Json Throughput(int n_sequences) {
    constexpr int kPromptTokens = 64;
    std::vector<double> rates;
    for (int run = 0; run <= options_.n_batches; ++run) {
      const Batch batch = Ask(n_sequences, kPromptTokens, options_.n_tokens, /*stream=*/false);
      if (batch.replies.empty()) return FailedRow("throughput", 0, n_sequences);
      if (run > 0) rates.push_back(static_cast<double>(batch.n_completion_tokens()) / batch.time_s);
    }
    return Row("throughput", 0, n_sequences, rates);
  }

  Json LongPrompt(int n_context) {
    constexpr int kAnswerTokens = 64;
    std::vector<double> output_rates;
    std::vector<double> total_rates;
    std::vector<double> first_token_s;
    int64_t n_prompt_tokens = 0;
    for (int run = 0; run < options_.n_runs; ++run) {
      const Batch batch = Ask(1, n_context, kAnswerTokens, /*stream=*/true);
      if (batch.replies.empty()) return FailedRow("long prompt", n_context, 1);
      const Reply& reply = batch.replies[0];
      n_prompt_tokens = reply.n_prompt_tokens;
      const auto n_output = static_cast<double>(reply.n_completion_tokens);
      output_rates.push_back(n_output / reply.time_s);
      total_rates.push_back((n_output + static_cast<double>(n_prompt_tokens)) / reply.time_s);
      if (reply.first_token_s > 0) first_token_s.push_back(reply.first_token_s);
    }
    Json row = Row("long prompt", n_context, 1, output_rates);
    row["prompt_tokens"] = n_prompt_tokens;
    row["total_tokens_per_s"] = Median(total_rates);
    row["first_token_s"] = first_token_s.empty() ? Json() : Json(Median(first_token_s));
    row["runs_first_token_s"] = first_token_s;
    return row;
  }

  Json Finish(Json rows) const {
    const double cached_share = n_prompt_tokens_ == 0 ? 0
                                                      : static_cast<double>(n_cached_tokens_) /
                                                            static_cast<double>(n_prompt_tokens_);
    Json flags = flags_;
    if (cached_share > kMostCachedShare) {
      flags.push_back(
          fmt::format("{:.0f} % of the prompts' tokens came from the server's cache: "
                      "figures with prompts are too good",
                      100 * cached_share));
    }
    if (n_stopped_early_ > 0) {
      flags.push_back(fmt::format("{} of {} answers stopped before the length that was asked for",
                                  n_stopped_early_, n_done_));
    }
    if (n_failed_ > 0)
      flags.push_back(fmt::format("{} requests failed: {}", n_failed_, first_fault_));
    return {{"rows", std::move(rows)},      {"requests", n_done_},
            {"failed", n_failed_},          {"stopped_early", n_stopped_early_},
            {"cached_share", cached_share}, {"flags", std::move(flags)}};
  }

 private:
  struct Batch {
    std::vector<Reply> replies;  // empty if any failed
    double time_s = 0;

    int64_t n_completion_tokens() const {
      int64_t n = 0;
      for (const Reply& reply : replies) n += reply.n_completion_tokens;
      return n;
    }
  };

  static Json Row(const char* work, int n_context, int n_sequences,
                  const std::vector<double>& rates) {
    const auto [slowest, fastest] = std::ranges::minmax(rates);
    return {{"work", work},
            {"context_tokens", n_context},
            {"sequences", n_sequences},
            {"tokens_per_s", Median(rates)},
            {"slowest", slowest},
            {"fastest", fastest},
            {"runs_tokens_per_s", rates}};
  }

  static Json FailedRow(const char* work, int n_context, int n_sequences) {
    return {{"work", work},
            {"context_tokens", n_context},
            {"sequences", n_sequences},
            {"runs_tokens_per_s", Json::array()}};
  }

  Batch Ask(int n_sequences, int n_prompt_tokens, int n_tokens, bool stream) {
    const int n_words = std::max(1, static_cast<int>(n_prompt_tokens / tokens_per_word_));
    std::vector<Query> queries;
    queries.reserve(static_cast<size_t>(n_sequences));
    for (int i = 0; i < n_sequences; ++i) {
      queries.push_back(
          {.text = Words(n_words), .max_tokens = n_tokens, .ignore_eos = true, .stream = stream});
    }
    Batch batch;
    const Stopwatch stopwatch;
    target_.AskAll(queries, n_sequences, [&](size_t, Result<Reply> reply) {
      on_request_(++n_done_, n_all_);
      if (!reply.has_value()) {
        if (n_failed_++ == 0) first_fault_ = reply.error().message;
        return true;
      }
      n_prompt_tokens_ += reply->n_prompt_tokens;
      n_cached_tokens_ += reply->n_cached_tokens;
      n_stopped_early_ += reply->n_completion_tokens < n_tokens ? 1 : 0;
      batch.replies.push_back(*std::move(reply));
      return true;
    });
    batch.time_s = stopwatch.seconds();
    if (batch.replies.size() < queries.size()) batch.replies.clear();
    return batch;
  }

  // Never the same twice, on any day.
  std::string Words(int n) {
    static constexpr const char* kWords[] = {"river", "green", "paper", "light", "house", "water",
                                             "music", "train", "bread", "snow",  "seven", "table"};
    std::string words = fmt::format("{:08x}{:08x}", random_(), random_());
    for (int i = 1; i < n; ++i) words += fmt::format(" {}", kWords[random_() % std::size(kWords)]);
    return words;
  }

  Target& target_;
  const ServerSpeedOptions& options_;
  const std::function<void(size_t, size_t)>& on_request_;
  std::random_device random_;
  double tokens_per_word_ = 1;
  size_t n_all_ = 0;
  size_t n_done_ = 0;
  int64_t n_prompt_tokens_ = 0;
  int64_t n_cached_tokens_ = 0;
  int n_stopped_early_ = 0;
  int n_failed_ = 0;
  std::string first_fault_;
  Json flags_ = Json::array();
};

}  // namespace

Result<Json> MeasureServer(Target& target, const ServerSpeedOptions& options,
                           const std::function<void(size_t n_done, size_t n)>& on_request) {
  ServerBench bench(target, options, on_request);
  NIBBLE_RETURN_IF_ERROR(bench.Calibrate());
  Json rows = Json::array();
  for (const int n_context : options.contexts) rows.push_back(bench.Decode(n_context));
  for (const int n_sequences : options.batches) rows.push_back(bench.Throughput(n_sequences));
  for (const int n_context : options.long_prompts) rows.push_back(bench.LongPrompt(n_context));
  return bench.Finish(std::move(rows));
}

}  // namespace nibble::measure
