#include "base/task_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <vector>

namespace nibble {
namespace {

TEST(TaskQueueTest, TasksRunInOrderAndAreWaitedFor) {
  std::vector<int> seen;
  TaskQueue queue;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(queue.Push([&seen, i]() -> Status {
      seen.push_back(i);
      return {};
    }),
              static_cast<uint64_t>(i) + 1);
  }
  ASSERT_TRUE(queue.Drain().has_value());
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[i], i);
}

TEST(TaskQueueTest, WaitingForOneTaskDoesNotWaitForTheNext) {
  TaskQueue queue;
  std::promise<void> blocker;
  const uint64_t first = queue.Push([]() -> Status { return {}; });
  queue.Push([wait = blocker.get_future().share()]() -> Status {
    wait.wait();
    return {};
  });
  EXPECT_TRUE(queue.WaitFor(first).has_value());
  blocker.set_value();
  EXPECT_TRUE(queue.Drain().has_value());
}

TEST(TaskQueueTest, AfterAnErrorTheRestIsDroppedAndFreesWhatItOwns) {
  TaskQueue queue;
  const auto owned = std::make_shared<int>(0);
  queue.Push([] { return Status(Fail("disk full")); });
  queue.Push([] { return Status(Fail("another")); });
  queue.Push([owned]() -> Status {
    ++*owned;
    return {};
  });
  const Status status = queue.Drain();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().message, "disk full");
  EXPECT_EQ(queue.status().error().message, "disk full");
  EXPECT_EQ(*owned, 0);
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(TaskQueueTest, DestructionDropsWhatHasNotBegun) {
  const auto n_run = std::make_shared<int>(0);
  {
    TaskQueue queue;
    std::promise<void> running;
    queue.Push([&running, n_run]() -> Status {
      running.set_value();
      ++*n_run;
      return {};
    });
    running.get_future().wait();
    for (int i = 0; i < 3; ++i) queue.Push([n_run]() -> Status { return {}; });
  }
  EXPECT_EQ(*n_run, 1);
  EXPECT_EQ(n_run.use_count(), 1);
}

}  // namespace
}  // namespace nibble
