// Plans and the programs that a matrix starts. The whole loop: tests/interop/test_matrix.py.
#include "measure/matrix.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/mapped_file.h"
#include "base/stopwatch.h"
#include "measure/child_process.h"

namespace nibble::measure {
namespace {

std::filesystem::path FileWith(const std::string& text) {
  std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "matrix_plan.json";
  std::ofstream(path) << text;
  return path;
}

std::string FaultOf(const std::string& text) {
  const auto path = FileWith(text);
  const Result<MatrixPlan> plan = ReadMatrixPlan(path, "nibble");
  return plan.has_value() ? "" : plan.error().message.substr(path.string().size());
}

TEST(MatrixPlan, ServesModelsAndCommands) {
  const Result<MatrixPlan> plan =
      ReadMatrixPlan(FileWith(R"({"out": "runs", "ready_s": 5, "upload": ["cp", "{dir}", "x"],
        "builds": [{"name": "a", "model": "m", "arguments": ["--kv", "int8"], "port": 81},
                   {"name": "b", "command": ["vllm", "serve"], "url": "http://h:1/v1/"}],
        "suites": [{"suite": "forty", "arguments": ["--n", "80"]}, {"suite": "bench"}]})"),
                     "nibble");
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  using Words = std::vector<std::string>;
  EXPECT_EQ(plan->builds[0].command,
            (Words{"nibble", "serve", "m", "--port", "81", "--kv", "int8"}));
  EXPECT_EQ(plan->builds[0].url, "http://127.0.0.1:81");
  EXPECT_EQ(plan->builds[1].url, "http://h:1");
  EXPECT_EQ(plan->suites[0].arguments, (Words{"--n", "80"}));
  EXPECT_EQ(plan->ready_s, 5);
  EXPECT_EQ(plan->upload.size(), 3u);
}

TEST(MatrixPlan, NamesWhatIsWrong) {
  const std::string suites = R"("suites": [{"suite": "forty"}]})";
  const std::string one = R"({"out": "r", "builds": [{"name": "a", "model": "m"}], )";
  EXPECT_EQ(FaultOf(one + suites), "");
  EXPECT_EQ(FaultOf(one + R"("suites": []})"), ": \"suites\": expected a list");
  EXPECT_EQ(FaultOf(one + R"("repeat": 2, )" + suites), ": unknown \"repeat\"");
  EXPECT_EQ(FaultOf(one + R"("ready_s": "9", )" + suites), ": \"ready_s\": expected seconds");
  EXPECT_EQ(FaultOf(R"({"builds": [{"name": "a", "model": "m"}], )" + suites),
            ": \"out\": expected a text");
  const auto build = [&](const std::string& entry) {
    return FaultOf(R"({"out": "r", "builds": [)" + entry + "], " + suites);
  };
  EXPECT_EQ(build(R"({"name": "../a", "model": "m"})"),
            ": builds[0]: \"name\": expected a name that can be a folder's, found \"../a\"");
  EXPECT_EQ(build(R"({"name": "a"})"), ": builds[0]: expected either \"model\" or \"command\"");
  EXPECT_EQ(build(R"({"name": "a", "command": ["x"]})"), ": builds[0]: \"url\": expected a text");
  EXPECT_EQ(build(R"({"name": "a", "command": [1], "url": "u"})"),
            ": builds[0]: \"command\": expected a list of texts");
  EXPECT_EQ(build(R"({"name": "a", "model": "m", "port": 0})"),
            ": builds[0]: \"port\": expected 1 to 65535");
  EXPECT_EQ(build(R"({"name": "a", "model": "m"}, {"name": "a", "model": "m"})"),
            ": builds[1]: another \"name\" \"a\"");
}

std::filesystem::path FreshLog() {
  std::filesystem::path log = std::filesystem::path(testing::TempDir()) / "child.log";
  std::filesystem::remove(log);
  return log;
}

void WaitFor(ChildProcess& child) {
  for (const Stopwatch stopwatch; !child.Ending().has_value() && stopwatch.seconds() < 20;) {
  }
}

TEST(ChildProcess, TellsHowItEnded) {
  const auto log = FreshLog();
  auto child = ChildProcess::Start({"sh", "-c", "echo out; echo err >&2; exit 3"}, log);
  ASSERT_TRUE(child.has_value());
  WaitFor(*child);
  EXPECT_EQ(child->Ending(), "exit status 3");
  EXPECT_FALSE(child->Succeeded());
  EXPECT_EQ(ReadTextFile(log).value(), "out\nerr\n");
  const auto missing = ChildProcess::Start({"/no/such/program"}, log);
  ASSERT_FALSE(missing.has_value());
  EXPECT_TRUE(missing.error().message.contains("/no/such/program"));
}

TEST(ChildProcess, StopsWhatDoesNotListenAndWhatItStarted) {
  const auto log = FreshLog();
  auto child =
      ChildProcess::Start({"sh", "-c", "trap '' TERM; sleep 1000 & echo $!; wait; wait"}, log);
  ASSERT_TRUE(child.has_value());
  std::string grandchild;
  for (const Stopwatch stopwatch; !grandchild.ends_with('\n') && stopwatch.seconds() < 20;) {
    grandchild = ReadTextFile(log).value();
  }
  child->Stop(0.1);
  EXPECT_EQ(child->Ending(), "signal 9");
  const auto state = [&] {
    const auto stat =
        ReadTextFile("/proc/" + grandchild.substr(0, grandchild.size() - 1) + "/stat");
    return stat.has_value() && !stat->contains(") Z") ? "runs" : "ended";
  };
  for (const Stopwatch stopwatch; state() == std::string("runs") && stopwatch.seconds() < 20;) {
  }
  EXPECT_EQ(state(), std::string("ended"));
}

}  // namespace
}  // namespace nibble::measure
