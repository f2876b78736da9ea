#include "server/engine_thread.h"

#include <gtest/gtest.h>

#include <thread>

#include "scripted_model.h"

namespace nibble::server {
namespace {

engine::Request RequestFor(int max_tokens) {
  engine::Request request;
  request.prompt_ids = {2};
  request.max_tokens = max_tokens;
  request.stop_ids = {106};
  return request;
}

EngineThread Driving(std::string_view answer, ScriptedEngine::Options options,
                     std::shared_ptr<EngineView> view, int max_requests) {
  return {std::make_unique<ScriptedEngine>(Says(answer), options, std::move(view)), max_requests};
}

constexpr ScriptedEngine::Options kSlow = {.step_time = std::chrono::milliseconds(1)};

TEST(EngineThread, GivesEveryTokenToItsOwnQueue) {
  EngineThread thread = Driving("Hello<turn|>", {}, std::make_shared<EngineView>(), 8);
  std::vector<std::shared_ptr<TokenQueue>> queues;
  for (int i = 0; i < 4; ++i) {
    queues.push_back(std::make_shared<TokenQueue>(100));
    ASSERT_TRUE(thread.Submit({RequestFor(50), RequestFor(2)}, queues.back()).has_value());
  }
  EXPECT_TRUE(Eventually([&] { return thread.n_requests() == 0; }));
  for (const auto& queue : queues) {
    size_t n_of[2] = {};
    for (const Delivery& delivery : queue->Take()) ++n_of[delivery.choice_idx];
    EXPECT_EQ(n_of[0], Ids("Hello<turn|>").size());
    EXPECT_EQ(n_of[1], 2u);
    EXPECT_EQ(queue->failure(), "");
  }
}

TEST(EngineThread, TakesAllOfARequestOrNoneOfIt) {
  EngineThread thread = Driving("a", kSlow, std::make_shared<EngineView>(), 3);
  const auto queue = std::make_shared<TokenQueue>(1'000'000);
  const auto tickets = thread.Submit({RequestFor(1 << 20), RequestFor(1 << 20)}, queue);
  ASSERT_TRUE(tickets.has_value());
  EXPECT_FALSE(thread.Submit({RequestFor(1), RequestFor(1)}, queue).has_value());
  EXPECT_EQ(thread.n_requests(), 2);
  thread.Cancel(*tickets);
  EXPECT_TRUE(Eventually([&] { return thread.n_requests() == 0; }));
}

TEST(EngineThread, CancelEndsWorkWithinAStep) {
  const auto view = std::make_shared<EngineView>();
  EngineThread thread = Driving("a", {.max_sequences = 1, .step_time = kSlow.step_time}, view, 8);
  const auto queue = std::make_shared<TokenQueue>(1'000'000);
  const auto running = thread.Submit({RequestFor(1 << 20)}, queue);
  const auto waiting = thread.Submit({RequestFor(1 << 20)}, queue);
  EXPECT_TRUE(Eventually([&] { return view->n_steps > 3; }));
  EXPECT_TRUE(Eventually([&] { return thread.stats().n_waiting == 1; }));
  HeldStep step(*view);
  EXPECT_TRUE(Eventually([&] { return step.has_begun(); }));
  const int n_steps = view->n_steps;
  thread.Cancel(*waiting);
  thread.Cancel(*running);
  step.Release();
  EXPECT_TRUE(Eventually([&] { return view->n_live == 0; }));
  EXPECT_EQ(view->n_steps, n_steps);
  const auto late = thread.Submit({RequestFor(3)}, queue);
  EXPECT_TRUE(Eventually([&] { return thread.n_requests() == 0; }));
  thread.Cancel(*late);  // has finished: ignored
}

TEST(EngineThread, AReaderThatDoesNotReadLosesItsAnswerAlone) {
  EngineThread thread = Driving("a", {}, std::make_shared<EngineView>(), 8);
  const auto stuck = std::make_shared<TokenQueue>(10);
  const auto other = std::make_shared<TokenQueue>(1000);
  ASSERT_TRUE(thread.Submit({RequestFor(1 << 20)}, stuck).has_value());
  ASSERT_TRUE(thread.Submit({RequestFor(500)}, other).has_value());
  EXPECT_TRUE(Eventually([&] { return thread.n_requests() == 0; }));
  EXPECT_NE(stuck->failure(), "");
  EXPECT_EQ(stuck->Take().size(), 10u);
  EXPECT_EQ(other->failure(), "");
  EXPECT_EQ(other->Take().size(), 500u);
}

TEST(EngineThread, ADeadEngineFailsAllAndSaysWhy) {
  const auto view = std::make_shared<EngineView>();
  view->throws_at_step = 3;
  EngineThread thread = Driving("a", {}, view, 8);
  const auto queue = std::make_shared<TokenQueue>(1'000'000);
  ASSERT_TRUE(thread.Submit({RequestFor(1 << 20)}, queue).has_value());
  EXPECT_TRUE(Eventually([&] { return !thread.failure().empty(); }));
  EXPECT_NE(queue->failure().find("out of memory"), std::string::npos);
  const auto late = std::make_shared<TokenQueue>(1);
  ASSERT_TRUE(thread.Submit({RequestFor(1)}, late).has_value());
  EXPECT_NE(late->failure(), "");
}

TEST(EngineThread, ManyThreadsSubmitAndCancel) {
  EngineThread thread = Driving("abc<turn|>", {}, std::make_shared<EngineView>(), 1000);
  std::vector<std::thread> clients;
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([&thread, client] {
      for (int i = 0; i < 100; ++i) {
        const auto queue = std::make_shared<TokenQueue>(100);
        queue->SetWake([] {});
        const auto tickets = thread.Submit({RequestFor(20)}, queue);
        if ((i + client) % 3 == 0) thread.Cancel(*tickets);
        queue->SetWake(nullptr);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(Eventually([&] { return thread.n_requests() == 0; }));
}

}  // namespace
}  // namespace nibble::server
