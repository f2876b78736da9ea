// Order, budgets, preemption and the prefix cache: whatever happens to a request, its tokens are
// those that it gets alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine_fixture.h"

namespace nibble::engine {
namespace {

using SchedulerTest = EngineTest;

TEST_F(SchedulerTest, DecodingGoesOnWhileAPromptIsRead) {
  Engine engine = MakeEngine({.max_step_tokens = 8});
  const RequestId first = *engine.Submit(MakeRequest(4, 1));
  engine.Step();
  const RequestId second = *engine.Submit(MakeRequest(70, 2));
  // Each step: one token of the first, 7 of the prompt of the second.
  for (int step = 1; step <= 10; ++step) {
    const std::vector<Event> events = engine.Step();
    ASSERT_EQ(events.size(), step < 10 ? 1u : 2u) << step;
    EXPECT_EQ(events[0].request_id, first);
  }
  EXPECT_EQ(RunAll(engine)[second].size(), 29u);
}

TEST_F(SchedulerTest, PromptsAreReadHoweverManyDecode) {
  Engine engine = MakeEngine({.max_step_tokens = 4, .max_sequences = 8});
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(engine.Submit(MakeRequest(1, i)).has_value());
  for (int i = 0; i < 4; ++i) engine.Step();
  const RequestId last = *engine.Submit(MakeRequest(10, 9));
  std::map<RequestId, int> n_events;
  for (int i = 0; i < 12; ++i) {
    for (const Event& event : engine.Step()) ++n_events[event.request_id];
  }
  EXPECT_EQ(n_events.size(), 8u);
  EXPECT_GE(n_events[last], 1);
}

TEST_F(SchedulerTest, NobodyStarvesWhileNewOnesKeepComing) {
  Engine engine = MakeEngine(
      {.max_step_tokens = 16, .max_sequences = 4, .kv_budget_bytes = 2 * KvBytes(300, 16)});
  const RequestId longest = *engine.Submit(MakeRequest(250, 1));
  std::vector<RequestId> finished;
  int seed = 2;
  for (int step = 0; step < 200; ++step) {
    while (engine.stats().n_waiting < 3) {
      ASSERT_TRUE(engine.Submit(MakeRequest(5, seed++)).has_value());
    }
    for (const Event& event : engine.Step()) {
      if (event.finish != FinishReason::kNone) finished.push_back(event.request_id);
    }
  }
  EXPECT_TRUE(std::ranges::find(finished, longest) != finished.end());
  // Whoever came first is done first, but for what runs beside each other.
  for (size_t i = 0; i + 1 < finished.size(); ++i) {
    if (finished[i] == longest) continue;
    EXPECT_LE(finished[i], static_cast<RequestId>(i) + 6);
  }
}

TEST_F(SchedulerTest, PreemptedRequestsGiveTheSameTokens) {
  // Room for two at the end, and for five at the start.
  EngineOptions options{.max_step_tokens = 32, .kv_budget_bytes = 2 * KvBytes(64, 32)};
  for (const bool prefix_cache : {false, true}) {
    options.prefix_cache = prefix_cache;
    Engine engine = MakeEngine(options);
    std::map<RequestId, Request> requests;
    for (int i = 0; i < 7; ++i) {
      Request request = MakeRequest(10 + 3 * i, i);
      request.logprobs = true;
      request.prompt_logprobs = i % 3 == 0;
      if (i % 2 == 1) request.sampling = {.temperature = 1, .repetition_penalty = 1.2, .seed = 5};
      requests[*engine.Submit(request)] = request;
    }
    const auto together = RunAll(engine);
    EXPECT_GT(engine.stats().n_preemptions, 0);
    for (const auto& [id, request] : requests) ExpectSame(together.at(id), RunAlone(request));
    EXPECT_EQ(engine.stats().kv_used_bytes, 0);
    EXPECT_EQ(engine.stats().kv_cached_bytes > 0, prefix_cache);
  }
}

// Cases C12 and I8 of the field reports.
TEST_F(SchedulerTest, CachedPrefixesGiveTheSameTokens) {
  const EngineOptions options{.max_step_tokens = 32, .prefix_cache = true};
  Engine engine = MakeEngine(options);
  const Request whole = MakeRequest(150, 1);
  Run(engine, whole);
  for (const int n_shared : {15, 16, 17, 31, 32, 33, 70, 149, 150}) {
    Request request = MakeRequest(160, 2);
    std::ranges::copy_n(whole.prompt_ids.begin(), n_shared, request.prompt_ids.begin());
    request.prompt_ids.resize(static_cast<size_t>(n_shared) + n_shared % 2);
    const std::vector<Event> events = Run(engine, request);
    // Whole pages, and never the last token.
    const auto n_prompt = static_cast<int64_t>(request.prompt_ids.size());
    EXPECT_EQ(events[0].n_cached_tokens, std::min<int64_t>(n_shared, n_prompt - 1) / 16 * 16);
    EXPECT_EQ(events[1].n_cached_tokens, 0);
    ExpectSame(events, RunAlone(request, options));
  }
  const Stats stats = engine.stats();
  EXPECT_GT(stats.n_prefix_hit_tokens, 0);
  EXPECT_GT(stats.n_prefix_query_tokens, stats.n_prefix_hit_tokens);
}

// Case C12 of the field reports.
TEST_F(SchedulerTest, TheSecondTurnReadsTheFirstFromTheCache) {
  const EngineOptions options{.prefix_cache = true};
  Engine engine = MakeEngine(options);
  Request request = MakeRequest(100, 1);
  for (const Event& event : Run(engine, request)) request.prompt_ids.push_back(event.token_id);
  for (const int32_t id : {1, 2, 3}) request.prompt_ids.push_back(id);
  const std::vector<Event> second = Run(engine, request);
  EXPECT_EQ(second[0].n_cached_tokens, 128);  // prompt and answer but the last token: 129
  ExpectSame(second, RunAlone(request));
  request.prompt_logprobs = true;  // needs every row
  const std::vector<Event> scored = Run(engine, request);
  EXPECT_EQ(scored[0].n_cached_tokens, 0);
  EXPECT_EQ(scored[0].prompt_logprobs.size(), request.prompt_ids.size() - 1);
}

TEST_F(SchedulerTest, EqualPromptsAtTheSameTimeShareTheirPages) {
  Engine engine = MakeEngine({.max_step_tokens = 300, .prefix_cache = true});
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine.Submit(MakeRequest(65, 1)).has_value());
  std::map<RequestId, std::vector<Event>> events;
  for (Event& event : engine.Step()) events[event.request_id].push_back(std::move(event));
  EXPECT_EQ(engine.stats().full.n_used, 4 + 4);  // four pages in common, and one of each
  for (auto& [id, later] : RunAll(engine)) {
    std::ranges::move(later, std::back_inserter(events[id]));
  }
  const std::vector<Event> alone = RunAlone(MakeRequest(65, 1));
  EXPECT_EQ(events.size(), 4u);
  for (const auto& [id, own] : events) ExpectSame(own, alone);
  EXPECT_EQ(engine.stats().full.n_used, 0);
}

// Case C13 of the field reports.
TEST_F(SchedulerTest, TheCacheKeepsWithinItsBudget) {
  const int64_t budget = KvBytes(200, 32);
  Engine engine =
      MakeEngine({.max_step_tokens = 32, .kv_budget_bytes = budget, .prefix_cache = true});
  for (int i = 0; i < 200; ++i) {
    Request request = MakeRequest(40, 100 + i);
    request.max_tokens = 2;
    Run(engine, request);
    const Stats stats = engine.stats();
    EXPECT_EQ(stats.kv_used_bytes, 0);
    EXPECT_LE(stats.kv_cached_bytes, budget);
    EXPECT_LE(engine.kv_cache().pool().allocated_bytes(), budget);
  }
  EXPECT_GT(engine.stats().kv_cached_bytes, budget / 2);
}

// Requests of all kinds that come and go at random, in little memory.
TEST_F(SchedulerTest, NothingIsLostOrMixedUp) {
  const int64_t budget = 3 * KvBytes(100, 24);
  Engine engine = MakeEngine(
      {.max_step_tokens = 24, .max_sequences = 6, .kv_budget_bytes = budget, .prefix_cache = true});
  std::mt19937 random(1);
  std::map<std::pair<int, int>, std::vector<Event>> alone;  // by kind of prompt and its length
  std::map<RequestId, std::pair<int, int>> kinds;
  std::map<RequestId, std::vector<Event>> events;
  int n_finished = 0;
  int n_cancelled = 0;
  for (int step = 0; step < 2500 || !engine.idle(); ++step) {
    if (step < 2500 && random() % 4 == 0) {
      const std::pair kind(static_cast<int>(random() % 3), static_cast<int>(1 + random() % 6 * 13));
      const Request request = MakeRequest(kind.second, kind.first);
      if (!alone.contains(kind)) alone[kind] = RunAlone(request);
      kinds[*engine.Submit(request)] = kind;
    }
    if (random() % 30 == 0 && !kinds.empty()) {
      const auto it = std::next(kinds.begin(), random() % kinds.size());
      engine.Cancel(it->first);
      events.erase(it->first);
      kinds.erase(it);
      ++n_cancelled;
    }
    for (Event& event : engine.Step()) {
      ASSERT_TRUE(kinds.contains(event.request_id));
      std::vector<Event>& own = events[event.request_id];
      own.push_back(std::move(event));
      if (own.back().finish == FinishReason::kNone) continue;
      const RequestId id = own.back().request_id;
      ExpectSame(own, alone.at(kinds.at(id)));
      ++n_finished;
      kinds.erase(id);
      events.erase(id);
    }
    ASSERT_LE(engine.kv_cache().pool().allocated_bytes(), budget);
  }
  EXPECT_TRUE(kinds.empty());
  EXPECT_GT(n_finished, 300);
  EXPECT_GT(n_cancelled, 20);
  const Stats stats = engine.stats();
  EXPECT_GT(stats.n_preemptions, 0);
  EXPECT_GT(stats.n_prefix_hit_tokens, 0);
  EXPECT_EQ(stats.n_running + stats.n_waiting, 0);
  EXPECT_EQ(stats.kv_used_bytes, 0);
}

}  // namespace
}  // namespace nibble::engine
