// Requests alone, in company, in pieces, cancelled and refused.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>

#include "engine_fixture.h"

namespace nibble::engine {
namespace {

// Case I7 of the field reports.
TEST_F(EngineTest, AnswersAreTheSameAloneAndInABatch) {
  const EngineOptions options{.max_step_tokens = 20, .max_sequences = 5};
  Engine engine = MakeEngine(options);
  std::map<RequestId, Request> requests;
  for (int i = 0; i < 9; ++i) {
    Request request = MakeRequest(3 + 9 * i, i);
    if (i % 3 == 1) request.sampling = {.temperature = 1.5, .top_k = 20, .seed = 5};
    requests[*engine.Submit(request)] = request;
  }
  const std::map<RequestId, std::vector<Event>> together = RunAll(engine);
  ASSERT_EQ(together.size(), 9u);
  for (const auto& [id, request] : requests) ExpectSame(together.at(id), RunAlone(request));
  EXPECT_EQ(engine.stats().kv_used_bytes, 0);
}

TEST_F(EngineTest, PiecesOfThePromptChangeNothing) {
  const std::vector<Event> whole = RunAlone(MakeRequest(61, 1));
  for (const int piece : {1, 7, 16, 40}) {
    ExpectSame(RunAlone(MakeRequest(61, 1), {.max_step_tokens = piece}), whole);
  }
}

TEST_F(EngineTest, StopsAtAStopTokenOrTheLimit) {
  const std::vector<Event> free = RunAlone(MakeRequest(8, 2));
  ASSERT_EQ(free.size(), 30u);
  EXPECT_EQ(free.back().finish, FinishReason::kLength);
  Request request = MakeRequest(8, 2);
  request.stop_ids = {free[6].token_id};
  const std::vector<Event> stopped = RunAlone(request);
  EXPECT_LE(stopped.size(), 7u);
  EXPECT_EQ(stopped.back().token_id, free[6].token_id);
  EXPECT_EQ(stopped.back().finish, FinishReason::kStop);
}

TEST_F(EngineTest, EndsWhereTheContextIsFull) {
  Request request = MakeRequest(500, 3);  // of 512
  EXPECT_EQ(RunAlone(request).size(), 12u);
}

TEST_F(EngineTest, RefusesWhatItCannotRun) {
  Engine engine = MakeEngine();
  const auto expect_error = [&](Request request, std::string_view part) {
    const auto id = engine.Submit(std::move(request));
    ASSERT_FALSE(id.has_value());
    EXPECT_NE(id.error().message.find(part), std::string::npos) << id.error().message;
  };
  expect_error(MakeRequest(0, 1), "none");
  expect_error(MakeRequest(512, 1), "512");
  Request request = MakeRequest(4, 1);
  request.prompt_ids[2] = 96;
  expect_error(request, "token 2: id 96: expected 0 to 95");
  request.prompt_ids[2] = -1;
  expect_error(request, "id -1");
  request = MakeRequest(4, 1);
  request.max_tokens = 0;
  expect_error(request, "max_tokens 0");
  EXPECT_TRUE(engine.idle());
}

TEST_F(EngineTest, CancelFreesPagesAndLeavesOthersAlone) {
  Engine engine = MakeEngine({.max_step_tokens = 64, .max_sequences = 2});
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(*engine.Submit(MakeRequest(10, i)));
  for (int i = 0; i < 4; ++i) engine.Step();
  const int64_t bytes_of_two = engine.stats().kv_used_bytes;
  engine.Cancel(ids[0]);
  EXPECT_EQ(engine.stats().kv_used_bytes, bytes_of_two / 2);
  engine.Cancel(ids[2]);  // still waiting
  engine.Cancel(12345);
  const auto events = RunAll(engine);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events.begin()->first, ids[1]);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.stats().kv_used_bytes, 0);
}

TEST_F(EngineTest, PromptLogprobsAreThoseOfGeneration) {
  const std::vector<Event> generated = RunAlone(MakeRequest(10, 4));
  Request scored = MakeRequest(10, 4);
  for (const Event& event : generated) scored.prompt_ids.push_back(event.token_id);
  scored.max_tokens = 1;
  scored.prompt_logprobs = true;
  const std::vector<Event> events = RunAlone(scored, {.max_step_tokens = 7});
  ASSERT_EQ(events.size(), 1u);
  const std::vector<double>& logprobs = events[0].prompt_logprobs;
  ASSERT_EQ(logprobs.size(), scored.prompt_ids.size() - 1);
  for (size_t i = 0; i < generated.size(); ++i) {
    EXPECT_EQ(logprobs[9 + i], generated[i].top[0].logprob) << i;
  }
}

TEST_F(EngineTest, LogprobsAreOfTheChosenAndOfThePrompt) {
  Request request = MakeRequest(12, 4);
  request.logprobs = true;
  request.prompt_logprobs = true;
  request.max_tokens = 3;
  const std::vector<Event> events = RunAlone(request, {.max_step_tokens = 5});
  for (const Event& event : events) {
    EXPECT_EQ(event.token_id, event.top[0].id);
    EXPECT_EQ(event.logprob, event.top[0].logprob);
  }
  ASSERT_EQ(events[0].prompt_top.size(), 11u);
  for (size_t i = 0; i < 11; ++i) {
    ASSERT_EQ(events[0].prompt_top[i].size(), 5u);
    EXPECT_GE(events[0].prompt_top[i][0].logprob, events[0].prompt_logprobs[i]);
  }
  EXPECT_TRUE(events[1].prompt_top.empty());
  EXPECT_TRUE(RunAlone(MakeRequest(12, 4))[0].prompt_top.empty());
}

TEST_F(EngineTest, StopsNotBeforeTheLeastNumberOfTokens) {
  Request request = MakeRequest(8, 2);
  request.stop_ids = {RunAlone(MakeRequest(8, 2))[0].token_id};
  EXPECT_EQ(RunAlone(request).size(), 1u);
  request.min_tokens = 6;
  const std::vector<Event> events = RunAlone(request);
  EXPECT_GE(events.size(), 7u);
  for (size_t i = 0; i < 6; ++i) EXPECT_NE(events[i].token_id, request.stop_ids[0]);
}

// Allows the ids 3 i + 1 at index i; complete after `n_complete` tokens, and silent after `n_most`.
class Thirds : public TokenConstraint {
 public:
  Thirds(int n_complete, int n_most) : n_complete_(n_complete), n_most_(n_most) {}

  void FillMask(std::span<uint64_t> mask) override {
    std::ranges::fill(mask, 0);
    if (n_ < n_most_) mask[0] = uint64_t{1} << (3 * n_ + 1);
  }
  void Accept(int32_t id) override {
    EXPECT_EQ(id, 3 * n_ + 1);
    ++n_;
  }
  bool is_complete() const override { return n_ >= n_complete_; }

 private:
  int n_complete_;
  int n_most_;
  int n_ = 0;
};

TEST_F(EngineTest, ConstraintsDecideWhatMayCome) {
  const auto run = [&](int n_complete, int n_most, int max_tokens, int min_tokens) {
    Request request = MakeRequest(8, 2);
    request.constraint = std::make_shared<Thirds>(n_complete, n_most);
    request.max_tokens = max_tokens;
    request.min_tokens = min_tokens;
    request.stop_ids = {90};
    request.sampling.logit_bias = {{.id = 90, .bias = 100}};
    return RunAlone(request);
  };
  // The stop id comes as soon as it may.
  std::vector<Event> events = run(2, 9, 20, 0);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2].token_id, 90);
  EXPECT_EQ(events[2].finish, FinishReason::kStop);
  events = run(2, 9, 20, 5);
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[4].token_id, 13);
  // Nothing can follow.
  events = run(4, 4, 20, 0);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[3].finish, FinishReason::kStop);
  events = run(9, 4, 20, 0);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[3].finish, FinishReason::kDeadEnd);
  EXPECT_EQ(run(9, 9, 3, 0).back().finish, FinishReason::kLength);
}

TEST_F(EngineTest, SaysWhatTheContextIs) {
  EXPECT_EQ(MakeEngine().context_tokens(), 512);
  EXPECT_EQ(MakeEngine({.context_tokens = 100}).context_tokens(), 100);
  EXPECT_EQ(MakeEngine({.context_tokens = 1000}).context_tokens(), 512);
  EngineOptions options{.max_step_tokens = 32, .kv_budget_bytes = KvBytes(160, 32)};
  EXPECT_EQ(MakeEngine(options).context_tokens(), 160);
  Engine engine = MakeEngine(options);
  const auto id = engine.Submit(MakeRequest(160, 1));
  ASSERT_FALSE(id.has_value());
  EXPECT_NE(id.error().message.find("prompt of 160 tokens: the context holds 160"),
            std::string::npos)
      << id.error().message;
  EXPECT_EQ(Run(engine, MakeRequest(150, 1)).size(), 10u);
}

}  // namespace
}  // namespace nibble::engine
