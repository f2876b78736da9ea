#include "base/task_queue.h"

#include <utility>

namespace nibble {

TaskQueue::TaskQueue() : thread_([this] { Run(); }) {}

TaskQueue::~TaskQueue() {
  std::deque<Task> dropped;  // destroyed without the lock: a task may own what waits for it
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
  }
  pushed_.notify_all();
  thread_.join();
}

uint64_t TaskQueue::Push(Task task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  pushed_.notify_one();
  return ++n_pushed_;
}

Status TaskQueue::WaitFor(uint64_t task_number) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return n_done_ >= task_number; });
  return status_;
}

Status TaskQueue::Drain() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return n_done_ == n_pushed_; });
  return status_;
}

Status TaskQueue::status() {
  const std::lock_guard lock(mutex_);
  return status_;
}

void TaskQueue::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    pushed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    const bool is_dropped = !status_.has_value();
    lock.unlock();
    Status status;
    if (!is_dropped) status = task();
    task = nullptr;  // what it owns goes before anyone is told that it is done
    lock.lock();
    if (!is_dropped) status_ = std::move(status);
    ++n_done_;
    done_.notify_all();
  }
}

}  // namespace nibble
