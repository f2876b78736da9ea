#include "measure/speed.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "base/huge_memory.h"
#include "base/stopwatch.h"

namespace nibble::measure {
namespace {

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

  // Tokens per second of all sequences, once all of them decode.
  Result<double> Decode(int n_context, int n_sequences, int n_tokens) {
    std::vector<engine::RequestId> requests;
    for (int i = 0; i < n_sequences; ++i) {
      // Enough that none ends before the last has begun.
      NIBBLE_ASSIGN_OR_RETURN(const auto id, Submit(n_context, n_tokens + n_context + n_sequences));
      requests.push_back(id);
    }
    // The last prompt's first token, then one step of all to warm up.
    for (bool all_decode = false; !all_decode;) {
      for (const engine::Event& event : engine_.Step())
        all_decode |= event.request_id == requests.back();
    }
    engine_.Step();
    const Stopwatch stopwatch;
    for (int i = 0; i < n_tokens; ++i) engine_.Step();
    const double seconds = stopwatch.seconds();
    for (const engine::RequestId id : requests) engine_.Cancel(id);
    return n_sequences * n_tokens / seconds;
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
  std::mt19937_64 random_;
  std::uniform_int_distribution<int64_t> ids_;
};

}  // namespace

double SpeedRow::median() const {
  std::vector<double> sorted = tokens_per_s;
  std::ranges::sort(sorted);
  const size_t n = sorted.size();
  return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

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
        NIBBLE_ASSIGN_OR_RETURN(const double rate, bench.Decode(row.n_context_tokens,
                                                                row.n_sequences, options.n_tokens));
        row.tokens_per_s.push_back(rate);
      }
    }
  }
  return rows;
}

double ReadBandwidth(ThreadPool& pool) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  constexpr int64_t kWords = kBytes / 8;
  constexpr int kPasses = 4;
  constexpr int64_t kStreams = 8;  // a thread's; both figures by trial: more or less is slower
  constexpr int64_t kAheadWords = 2048;
  const std::shared_ptr<std::byte[]> memory = AllocateHuge(kBytes);  // as weights stand in
  std::memset(memory.get(), 1, kBytes);  // else all of it is the one page of zeros
  const auto* const words = reinterpret_cast<const uint64_t*>(memory.get());
  std::atomic<uint64_t> total = 0;
  double best_s = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const Stopwatch stopwatch;
    pool.ParallelFor(kWords / 8 / kStreams, [&](int64_t begin, int64_t end) {
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
    const double seconds = stopwatch.seconds();
    if (pass == 0 || seconds < best_s) best_s = seconds;
  }
  return static_cast<double>(kBytes) / best_s;
}

}  // namespace nibble::measure
