// Requests alone, in company, in pieces, cancelled and refused.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "../model/random_model.h"

namespace nibble::engine {
namespace {

using model::RandomPrompt;

class EngineTest : public ::testing::Test {
 protected:
  EngineTest()
      : weights_(*model::Bind(model::TestConfig(), model::RandomTensors(model::TestConfig()))),
        pool_(1) {}

  Engine MakeEngine(const EngineOptions& options = {}) {
    return Engine(weights_, **kernels::ChooseKernels(nullptr), pool_, options);
  }

  Request MakeRequest(int n_prompt, int seed) {
    return {.prompt_ids = RandomPrompt(weights_.config, n_prompt, seed),
            .max_tokens = 30,
            .sampling = {},
            .stop_ids = {},
            .n_top_logprobs = 5};
  }

  // All events of a request, by its id.
  static std::map<RequestId, std::vector<Event>> RunAll(Engine& engine) {
    std::map<RequestId, std::vector<Event>> events;
    while (!engine.idle()) {
      for (Event& event : engine.Step()) events[event.request_id].push_back(std::move(event));
    }
    return events;
  }

  std::vector<Event> RunAlone(Request request, const EngineOptions& options = {}) {
    Engine engine = MakeEngine(options);
    const RequestId id = *engine.Submit(std::move(request));
    return RunAll(engine)[id];
  }

  static void ExpectSame(const std::vector<Event>& a, const std::vector<Event>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].token_id, b[i].token_id);
      EXPECT_EQ(a[i].finish, b[i].finish);
      ASSERT_EQ(a[i].top.size(), b[i].top.size());
      for (size_t k = 0; k < a[i].top.size(); ++k) {
        EXPECT_EQ(a[i].top[k].id, b[i].top[k].id);
        EXPECT_EQ(a[i].top[k].logprob, b[i].top[k].logprob);  // the same logits, bit by bit
      }
    }
  }

  model::Weights weights_;
  ThreadPool pool_;
};

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
  EXPECT_EQ(engine.kv_cache().bytes_in_use(), 0);
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
  const int64_t bytes_of_two = engine.kv_cache().bytes_in_use();
  engine.Cancel(ids[0]);
  EXPECT_EQ(engine.kv_cache().bytes_in_use(), bytes_of_two / 2);
  engine.Cancel(ids[2]);  // still waiting
  engine.Cancel(12345);
  const auto events = RunAll(engine);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events.begin()->first, ids[1]);
  EXPECT_TRUE(engine.idle());
  EXPECT_EQ(engine.kv_cache().bytes_in_use(), 0);
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

}  // namespace
}  // namespace nibble::engine
