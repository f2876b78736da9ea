#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>

#include "base/check.h"

namespace nibble {

ThreadPool::ThreadPool(int n_threads) {
  CHECK(n_threads >= 1);
  workers_.reserve(static_cast<size_t>(n_threads) - 1);
  for (int thread_idx = 1; thread_idx < n_threads; ++thread_idx) {
    workers_.emplace_back([this, thread_idx] { Work(thread_idx); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t n, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  if (workers_.empty() || n == 1) return body(0, n);
  {
    const std::lock_guard lock(mutex_);
    n_ = n;
    body_ = &body;
    n_running_ = static_cast<int>(workers_.size());
    ++generation_;
  }
  start_.notify_all();
  RunPart(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return n_running_ == 0; });
}

void ThreadPool::Work(int thread_idx) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    start_.wait(lock, [&] { return stopping_ || generation_ != seen; });
    if (stopping_) return;
    seen = generation_;
    lock.unlock();
    RunPart(thread_idx);
    lock.lock();
    if (--n_running_ == 0) done_.notify_one();
  }
}

void ThreadPool::RunPart(int thread_idx) {
  const int64_t begin = n_ * thread_idx / n_threads();
  const int64_t end = n_ * (thread_idx + 1) / n_threads();
  if (begin < end) (*body_)(begin, end);
}

int AvailableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace nibble
