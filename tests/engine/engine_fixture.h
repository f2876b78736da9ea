// A random model, requests for it, and their events, for tests of the engine.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "../model/random_model.h"
#include "engine/engine.h"

namespace nibble::engine {

class EngineTest : public ::testing::Test {
 protected:
  EngineTest()
      : weights_(*model::Bind(model::TestConfig(), model::RandomTensors(model::TestConfig()))),
        pool_(1) {}

  Engine MakeEngine(const EngineOptions& options = {}) {
    return Engine(weights_, **kernels::ChooseKernels(nullptr), pool_, options);
  }

  Request MakeRequest(int n_prompt, int seed) {
    Request request;
    request.prompt_ids = model::RandomPrompt(weights_.config, n_prompt, seed);
    request.max_tokens = 30;
    request.n_top_logprobs = 5;
    return request;
  }

  // All events of a request, by its id.
  static std::map<RequestId, std::vector<Event>> RunAll(Engine& engine) {
    std::map<RequestId, std::vector<Event>> events;
    while (!engine.idle()) {
      for (Event& event : engine.Step()) events[event.request_id].push_back(std::move(event));
    }
    return events;
  }

  static std::vector<Event> Run(Engine& engine, Request request) {
    const RequestId id = *engine.Submit(std::move(request));
    return RunAll(engine)[id];
  }

  std::vector<Event> RunAlone(Request request, const EngineOptions& options = {}) {
    Engine engine = MakeEngine(options);
    return Run(engine, std::move(request));
  }

  // The same tokens, from the same logits, bit by bit.
  static void ExpectSame(const std::vector<Event>& a, const std::vector<Event>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].token_id, b[i].token_id);
      EXPECT_EQ(a[i].finish, b[i].finish);
      EXPECT_EQ(a[i].logprob, b[i].logprob);
      EXPECT_EQ(a[i].prompt_logprobs, b[i].prompt_logprobs);
      ASSERT_EQ(a[i].top.size(), b[i].top.size());
      for (size_t k = 0; k < a[i].top.size(); ++k) {
        EXPECT_EQ(a[i].top[k].id, b[i].top[k].id);
        EXPECT_EQ(a[i].top[k].logprob, b[i].top[k].logprob);
      }
    }
  }

  // Bytes of KV that a sequence of n tokens holds at most.
  int64_t KvBytes(int64_t n_tokens, int64_t n_step_tokens) {
    const Engine engine = MakeEngine();
    const model::KvCache& cache = engine.kv_cache();
    return cache.pool().Bytes(cache.PagesOf(n_tokens, n_step_tokens));
  }

  model::Weights weights_;
  ThreadPool pool_;
};

}  // namespace nibble::engine
