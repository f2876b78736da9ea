#include "measure/speed.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "base/huge_memory.h"
#include "base/stopwatch.h"
#include "measure/statistics.h"

namespace nibble::measure {
namespace {

constexpr int64_t kProbeBytes = int64_t{1} << 30;

class Bench {
 public:
  Bench(engine::Engine& engine, int64_t n_token_ids) : engine_(engine), ids_(0, n_token_ids - 1) {}

  // Seconds from submission to the first token.
  Result<double> Prefill(int n_tokens) {
    const Stopwatch stopwatch;
    NIBBLE_RETURN_IF_ERROR(Submit(n_tokens, 1));
    while (!engine_.idle()) engine_.Step();
    return stopwatch.seconds();
  }

  // Takes up sequences of so many tokens of context, to decode n_tokens and some more, until all of
  // them do.
  Status Begin(int n_context, int n_sequences, int n_tokens) {
    for (int i = 0; i < n_sequences; ++i) {
      // Enough that none ends before the last has begun.
      NIBBLE_ASSIGN_OR_RETURN(const auto id, Submit(n_context, n_tokens + n_context + n_sequences));
      requests_.push_back(id);
    }
    // The last prompt's first token, then one step of all to warm up.
    for (bool all_decode = false; !all_decode;) {
      for (const engine::Event& event : engine_.Step()) {
        all_decode |= event.request_id == requests_.back();
      }
    }
    engine_.Step();
    return {};
  }

  // Tokens per second of all of them together. Error: not all of them ran.
  Result<double> Steps(int n_tokens) {
    const Stopwatch stopwatch;
    size_t n_given = 0;
    for (int i = 0; i < n_tokens; ++i) n_given += engine_.Step().size();
    const double rate = static_cast<double>(n_given) / stopwatch.seconds();
    const size_t n_expected = requests_.size() * static_cast<size_t>(n_tokens);
    if (n_given != n_expected) {
      return Fail("{} sequences gave {} of {} tokens: they do not run all at once",
                  requests_.size(), n_given, n_expected);
    }
    return rate;
  }

  void End() {
    for (const engine::RequestId id : requests_) engine_.Cancel(id);
    requests_.clear();
  }

 private:
  Result<engine::RequestId> Submit(int n_prompt_tokens, int max_tokens) {
    engine::Request request;
    request.max_tokens = max_tokens;
    for (int i = 0; i < n_prompt_tokens; ++i) {
      request.prompt_ids.push_back(static_cast<int32_t>(ids_(random_)));
    }
    return engine_.Submit(std::move(request));
  }

  engine::Engine& engine_;
  std::vector<engine::RequestId> requests_;
  std::mt19937_64 random_;
  std::uniform_int_distribution<int64_t> ids_;
};

}  // namespace

double SpeedRow::median() const { return Median(tokens_per_s); }

Result<std::vector<SpeedRow>> MeasureSpeed(engine::Engine& engine, int64_t n_token_ids,
                                           const SpeedOptions& options) {
  std::vector<SpeedRow> rows;
  rows.reserve(options.prompts.size() + options.contexts.size() * options.batches.size());
  for (const int n_prompt : options.prompts) {
    rows.push_back({.work = "prefill", .n_context_tokens = n_prompt, .tokens_per_s = {}});
  }
  for (const int n_context : options.contexts) {
    for (const int n_sequences : options.batches) {
      rows.push_back({.work = "decode",
                      .n_context_tokens = n_context,
                      .n_sequences = n_sequences,
                      .tokens_per_s = {}});
    }
  }
  Bench bench(engine, n_token_ids);
  for (int run = 0; run < options.n_runs; ++run) {
    for (SpeedRow& row : rows) {
      if (row.work == "prefill") {
        NIBBLE_ASSIGN_OR_RETURN(const double seconds, bench.Prefill(row.n_context_tokens));
        row.tokens_per_s.push_back(row.n_context_tokens / seconds);
      } else {
        NIBBLE_RETURN_IF_ERROR(
            bench.Begin(row.n_context_tokens, row.n_sequences, options.n_tokens));
        NIBBLE_ASSIGN_OR_RETURN(const double rate, bench.Steps(options.n_tokens));
        row.tokens_per_s.push_back(rate);
        bench.End();
      }
    }
  }
  return rows;
}

MemoryProbe::MemoryProbe(ThreadPool& pool)
    : pool_(pool), memory_(AllocateHuge(kProbeBytes)) {  // as weights stand in
  std::memset(memory_.get(), 1, kProbeBytes);            // else all of it is the one page of zeros
}

double MemoryProbe::Read() {
  constexpr int64_t kWords = kProbeBytes / 8;
  constexpr int64_t kStreams = 8;  // a thread's; both figures by trial: more or less is slower
  constexpr int64_t kAheadWords = 2048;
  const auto* const words = reinterpret_cast<const uint64_t*>(memory_.get());
  std::atomic<uint64_t> total = 0;
  const Stopwatch stopwatch;
  pool_.ParallelFor(kWords / 8 / kStreams, [&](int64_t begin, int64_t end) {
    const int64_t n = (end - begin) * 8;
    uint64_t sums[8] = {};
    for (int64_t i = 0; i < n; i += 8) {
      for (int64_t stream = 0; stream < kStreams; ++stream) {
        const uint64_t* line = words + (begin * 8 * kStreams + stream * n + i);
        __builtin_prefetch(line + kAheadWords, /*rw=*/0, /*locality=*/2);
        for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += line[lane];
      }
    }
    for (const uint64_t sum : sums) total += sum;
  });
  return static_cast<double>(kProbeBytes) / stopwatch.seconds();
}

Result<MemoryShare> MeasureMemoryShare(engine::Engine& engine, int64_t n_token_ids,
                                       double weight_bytes_per_token, MemoryProbe& probe) {
  constexpr int kTurns = 16;
  constexpr int kContext = 128;
  constexpr int kTokens = 4;
  Bench bench(engine, n_token_ids);
  std::vector<double> reads = {probe.Read()};
  std::vector<double> shares;
  NIBBLE_RETURN_IF_ERROR(bench.Begin(kContext, 1, kTurns * kTokens));
  for (int turn = 0; turn < kTurns; ++turn) {
    NIBBLE_ASSIGN_OR_RETURN(const double rate, bench.Steps(kTokens));
    reads.push_back(probe.Read());
    shares.push_back(2 * weight_bytes_per_token * rate / (reads[turn] + reads[turn + 1]));
  }
  bench.End();
  return MemoryShare{.bytes_per_s = Median(reads), .of_decode = Median(shares)};
}

}  // namespace nibble::measure
