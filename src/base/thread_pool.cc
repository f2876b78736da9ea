#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace nibble {
namespace {

constexpr std::chrono::microseconds kSpin{50};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `value` is not `old`: awake at first, then asleep.
template <typename T>
void WaitWhile(const std::atomic<T>& value, T old) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) {
  CHECK(n_threads >= 1);
  workers_.reserve(static_cast<size_t>(n_threads) - 1);
  for (int thread_idx = 1; thread_idx < n_threads; ++thread_idx) {
    workers_.emplace_back([this, thread_idx] { Work(thread_idx); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t n, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  if (workers_.empty() || n == 1) return body(0, n);
  n_ = n;
  body_ = &body;
  n_running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  RunPart(0);
  for (int n_left = n_running_.load(std::memory_order_acquire); n_left > 0;
       n_left = n_running_.load(std::memory_order_acquire)) {
    WaitWhile(n_running_, n_left);
  }
}

void ThreadPool::Work(int thread_idx) {
  for (uint32_t seen = 0;; ++seen) {
    WaitWhile(generation_, seen);
    if (stopping_) return;
    RunPart(thread_idx);
    if (n_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) n_running_.notify_one();
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
