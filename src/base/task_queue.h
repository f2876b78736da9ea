// One thread that runs tasks in the order in which they came, so that slow work (writing, hashing)
// goes on while its caller prepares the next piece. Tested by task_queue_test.cc.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/result.h"

namespace nibble {

class TaskQueue {
 public:
  using Task = std::function<Status()>;

  TaskQueue();
  // Waits for the running task; those that have not begun are dropped.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Returns the task's number. After a task's error the later ones are dropped. Any thread.
  uint64_t Push(Task task);
  // Waits until this task and those before it are done or dropped. The first error so far.
  Status WaitFor(uint64_t task_number);
  // The same for all tasks pushed so far.
  Status Drain();
  // Without waiting.
  Status status();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable pushed_;
  std::condition_variable done_;
  std::deque<Task> tasks_;
  uint64_t n_pushed_ = 0;
  uint64_t n_done_ = 0;
  bool stopping_ = false;
  Status status_;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace nibble
