// A fixed set of threads that split a range of indices between them.
//
// The split is static and depends on the range and the thread count alone; work that writes only to
// its own indices therefore gives the same bytes with any number of threads. Between two calls
// threads spin for a moment before they sleep: a forward pass makes hundreds of calls a
// millisecond apart, and waking a sleeper costs more than many of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace nibble {

class ThreadPool {
 public:
  // n_threads >= 1, the caller's own thread included.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) on contiguous parts of [0, n), one part a thread; returns when all are
  // done. One caller at a time; not to be nested. `body` must not throw.
  void ParallelFor(int64_t n, const std::function<void(int64_t begin, int64_t end)>& body);

 private:
  void Work(int thread_idx);
  void RunPart(int thread_idx);

  std::vector<std::thread> workers_;
  std::atomic<uint32_t> generation_ = 0;  // rises by one per ParallelFor, and to stop
  std::atomic<int> n_running_ = 0;        // workers that have not finished their part
  bool stopping_ = false;                 // these are written before generation_ rises
  int64_t n_ = 0;
  const std::function<void(int64_t, int64_t)>* body_ = nullptr;
};

// Cores that this process may use: the affinity mask, at least 1.
int AvailableCores();

}  // namespace nibble
