#include "base/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace nibble {
namespace {

// gtest's capture makes stderr a file, hence not a terminal.
template <typename Body>
std::string StderrOf(Body body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

TEST(ProgressTest, OneLinePerTenPercentElsewhere) {
  const std::string text = StderrOf([] {
    ProgressBar bar("repack");
    for (uint64_t done = 0; done <= 100'000; ++done) bar.Update(done, 100'000);
    bar.Update(100'000, 100'000);
    bar.Finish();
  });
  EXPECT_EQ(std::ranges::count(text, '\n'), 10) << text;
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.rfind("repack  10 %", 0), 0u) << text;
  EXPECT_NE(text.find("repack 100 %  0.00 of 0.00 GB"), std::string::npos) << text;
}

TEST(ProgressTest, OddTotals) {
  const std::string text = StderrOf([] {
    ProgressBar("empty").Update(0, 0);
    ProgressBar("over").Update(30, 20);
  });
  EXPECT_EQ(text.rfind("empty 100 %", 0), 0u) << text;
  EXPECT_NE(text.find("over 100 %"), std::string::npos) << text;
  EXPECT_NE(text.find(" 0 s left"), std::string::npos) << text;
}

}  // namespace
}  // namespace nibble
