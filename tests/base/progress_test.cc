#include "base/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

namespace nibble {
namespace {

using std::chrono::milliseconds;

// gtest's capture makes stderr a file, hence not a terminal.
template <typename Body>
std::string StderrOf(Body body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

class ProgressTest : public testing::Test {
 protected:
  ProgressBar::Clock clock() {
    return [this] { return now_; };
  }

  std::chrono::steady_clock::time_point now_{};
};

TEST_F(ProgressTest, OneLinePerTenPercentElsewhere) {
  const std::string text = StderrOf([&] {
    ProgressBar bar("repack", "", clock());
    for (uint64_t done = 0; done <= 100'000; ++done) {
      bar.Update(done * 20'000, 2'000'000'000);
      now_ += std::chrono::microseconds(200);  // 100 MB/s
    }
    bar.Update(2'000'000'000, 2'000'000'000);
    bar.Finish();
  });
  EXPECT_EQ(std::ranges::count(text, '\n'), 10) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.rfind("repack  10 %  0.20 of 2.00 GB  100 MB/s  18 s left\n", 0), 0u) << text;
  EXPECT_NE(text.find("repack 100 %  2.00 of 2.00 GB  100 MB/s  0 s left\n"), std::string::npos)
      << text;
}

TEST_F(ProgressTest, AShortJobPrintsNothing) {
  EXPECT_EQ(StderrOf([&] {
              ProgressBar bar("repack", "", clock());
              for (uint64_t done = 0; done <= 10; ++done) bar.Update(done, 10);
              now_ += milliseconds(999);
              bar.Update(10, 10);
              bar.Finish();
            }),
            "");
}

TEST_F(ProgressTest, UnitsFollowTheTotal) {
  const auto line = [&](uint64_t done, uint64_t total, milliseconds after, const char* item = "") {
    return StderrOf([&] {
      ProgressBar bar("x", item, clock());
      now_ += after;
      bar.Update(done, total);
    });
  };
  using std::chrono::seconds;
  EXPECT_EQ(line(500, 900, seconds(2)), "x  56 %  500 of 900 B  250 B/s  2 s left\n");
  EXPECT_EQ(line(2'500, 25'000, seconds(2)), "x  10 %  2.50 of 25.0 kB  1.25 kB/s  18 s left\n");
  EXPECT_EQ(line(31'000'000'000, 62'000'000'000, seconds(100)),
            "x  50 %  31.0 of 62.0 GB  310 MB/s  1 min 40 s left\n");
  EXPECT_EQ(line(10, 100, seconds(1000), "questions"),
            "x  10 %  10 of 100 questions  2 h 30 min left\n");
  EXPECT_EQ(line(0, 0, seconds(1)), "x 100 %  0 of 0 B  0 B/s  0 s left\n");
  EXPECT_EQ(line(30, 20, seconds(1)), "x 100 %  20 of 20 B  20 B/s  0 s left\n");
}

}  // namespace
}  // namespace nibble
