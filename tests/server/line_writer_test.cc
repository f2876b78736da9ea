#include "server/line_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <vector>

namespace nibble::server {
namespace {

class LineWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::pipe(ends_.data()), 0);
    ASSERT_EQ(::fcntl(ends_[1], F_SETPIPE_SZ, 4096), 4096);
  }
  ~LineWriterTest() override {
    for (const int end : ends_) ::close(end);
  }

  // What is in the pipe.
  std::string Read() const {
    int n_bytes = 0;
    EXPECT_EQ(::ioctl(ends_[0], FIONREAD, &n_bytes), 0);
    std::string text(static_cast<size_t>(n_bytes), '\0');
    EXPECT_EQ(::read(ends_[0], text.data(), text.size()), n_bytes);
    return text;
  }

  std::array<int, 2> ends_ = {-1, -1};  // to read, to write
};

TEST_F(LineWriterTest, AStalledReaderCostsLinesThatAreCounted) {
  LineWriter writer(ends_[1]);
  const std::string line(299, 'a');
  for (int i = 0; i < 1000; ++i) writer.Write(line);  // would never end if one of them blocked
  const auto n_read = std::ranges::count(Read(), '\n');
  ASSERT_GT(n_read, 0);
  writer.Write("b");
  EXPECT_EQ(Read(), "lines of this log that were lost so far, as nobody read them: " +
                        std::to_string(1000 - n_read) + "\nb\n");
  writer.Write("c");
  EXPECT_EQ(Read(), "c\n");
}

TEST_F(LineWriterTest, ALineThatIsCutGetsItsEndLater) {
  LineWriter writer(ends_[1]);
  const std::string longer(10'000, 'a');
  writer.Write(longer);
  EXPECT_EQ(Read(), longer.substr(0, 4096));
  writer.Write("b");
  EXPECT_EQ(Read(), "\nlines of this log that were lost so far, as nobody read them: 1\nb\n");
}

TEST_F(LineWriterTest, AReaderThatReadsGetsEveryLineWhole) {
  constexpr int kThreads = 4;
  constexpr int kLines = 200;
  std::string text;
  std::thread reader([&] {
    std::array<char, 1000> buffer;
    while (std::ranges::count(text, '\n') < kThreads * kLines) {
      const ssize_t n = ::read(ends_[0], buffer.data(), buffer.size());
      ASSERT_GT(n, 0);
      text.append(buffer.data(), static_cast<size_t>(n));
    }
  });
  LineWriter writer(ends_[1], /*patience_ms=*/-1);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&writer, t] {
      for (int i = 0; i < kLines; ++i) writer.Write(std::string(1000, static_cast<char>('a' + t)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  reader.join();
  for (int t = 0; t < kThreads; ++t) {
    const std::string line = std::string(1000, static_cast<char>('a' + t)) + "\n";
    int n_found = 0;
    for (size_t at = 0; (at = text.find(line, at)) != std::string::npos; at += line.size()) {
      ++n_found;
    }
    EXPECT_EQ(n_found, kLines);
  }
}

}  // namespace
}  // namespace nibble::server
