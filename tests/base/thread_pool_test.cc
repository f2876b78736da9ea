#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

namespace nibble {
namespace {

using Parts = std::vector<std::pair<int64_t, int64_t>>;

Parts PartsOf(ThreadPool& pool, int64_t n) {
  std::mutex mutex;
  Parts parts;
  pool.ParallelFor(n, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    parts.emplace_back(begin, end);
  });
  std::ranges::sort(parts);
  return parts;
}

TEST(ThreadPoolTest, PartsTileTheRange) {
  for (const int n_threads : {1, 2, 3, 8}) {
    ThreadPool pool(n_threads);
    EXPECT_EQ(pool.n_threads(), n_threads);
    for (const int64_t n : {0, 1, 2, 7, 8, 9, 1000}) {
      int64_t covered = 0;
      const Parts parts = PartsOf(pool, n);
      EXPECT_LE(std::ssize(parts), n_threads);
      for (const auto& [begin, end] : parts) {
        EXPECT_EQ(begin, covered);
        EXPECT_LT(begin, end);
        // One part a thread, of equal size up to one.
        EXPECT_LE(end - begin, n / n_threads + 1);
        covered = end;
      }
      EXPECT_EQ(covered, n) << n_threads << " threads";
    }
    EXPECT_TRUE(PartsOf(pool, -3).empty());
  }
}

// Plain writes from the workers are visible to the caller after ParallelFor, round after round: run
// under ThreadSanitizer, this is the test of the pool's synchronisation.
TEST(ThreadPoolTest, WritesAreVisibleAfterEveryRound) {
  ThreadPool pool(4);
  std::vector<int64_t> values(100);
  for (int64_t round = 1; round <= 2000; ++round) {
    pool.ParallelFor(std::ssize(values), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[i] += i;
    });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), round * 4950);
  }
}

TEST(ThreadPoolTest, WorkReallyRunsAtTheSameTime) {
  ThreadPool pool(3);
  std::atomic<int> n_arrived = 0;
  pool.ParallelFor(3, [&](int64_t, int64_t) {
    ++n_arrived;
    while (n_arrived < 3) std::this_thread::yield();  // hangs unless all three are here
  });
  EXPECT_EQ(n_arrived, 3);
}

TEST(ThreadPoolTest, IdlePoolsStop) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

TEST(ThreadPoolTest, AvailableCoresIsPositive) { EXPECT_GE(AvailableCores(), 1); }

}  // namespace
}  // namespace nibble
