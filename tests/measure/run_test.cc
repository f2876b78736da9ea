// Runs on disk: resumed where they were broken off, and only as the same run.
#include "measure/run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/mapped_file.h"

namespace nibble::measure {
namespace {

namespace fs = std::filesystem;

// Answers with the prompt turned round; fails for prompts that hold "fail".
class ReversingTarget : public Target {
 public:
  void AskAll(std::span<const Query> queries, int, const OnReply& on_reply) override {
    for (size_t i = 0; i < queries.size(); ++i) {
      const std::string& prompt = queries[i].messages[0].content;
      ++n_asked;
      Result<Reply> reply = Fail("asked to fail");
      if (!prompt.contains("fail")) reply = Reply{.text = {prompt.rbegin(), prompt.rend()}};
      if (!on_reply(i, std::move(reply)) || n_asked == stop_after) return;
    }
  }

  int n_asked = 0;
  int stop_after = -1;
};

Suite MakeSuite(const std::vector<std::string>& prompts, int setting = 1) {
  Suite suite{.name = "reverse", .settings = {{"setting", setting}}};
  for (const std::string& prompt : prompts) {
    suite.items.push_back(
        {.id = prompt, .kind = "word", .query = {.messages = {{"user", prompt}}}});
  }
  suite.judge = [](const Item& item, const Reply& reply) {
    return Json{{"score", reply.text == item.id ? 1 : 0}};
  };
  return suite;
}

class RunTest : public testing::Test {
 protected:
  RunTest() : dir_(fs::path(testing::TempDir()) / "nibble_run_test" / "run") {
    fs::remove_all(dir_.parent_path());
  }
  ~RunTest() override { fs::remove_all(dir_.parent_path()); }

  Json Manifest(const Suite& suite, const std::string& model = "m") const {
    return {{"suite", ManifestOf(suite)}, {"target", {{"model", model}}}};
  }

  Result<SuiteResult> Run(const Suite& suite, ReversingTarget* target) const {
    NIBBLE_ASSIGN_OR_RETURN(RunWriter writer, RunWriter::Open(dir_, Manifest(suite)));
    return RunSuite(*target, suite, 1, &writer, [](size_t, size_t) {});
  }

  std::string Error(const Suite& suite, const std::string& model = "m") const {
    const auto writer = RunWriter::Open(dir_, Manifest(suite, model));
    return writer.has_value() ? "no error" : writer.error().message;
  }

  fs::path dir_;
};

TEST_F(RunTest, GoesOnWhereItWasBrokenOff) {
  const Suite suite = MakeSuite({"anna", "bob", "carl", "otto"});
  ReversingTarget first;
  first.stop_after = 2;
  ASSERT_TRUE(Run(suite, &first).has_value());
  // What a process leaves that ends in the middle of a line.
  std::ofstream(dir_ / "records.jsonl", std::ios::app) << R"({"id":"carl","sco)";
  ReversingTarget second;
  const auto result = Run(suite, &second);
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_EQ(second.n_asked, 2);
  const Json summary = Summarize("reverse", result->records);
  EXPECT_EQ(summary["correct"], 3);
  EXPECT_EQ(summary["kinds"]["word"]["total"], 4);
  const auto read = measure::ReadRun(dir_);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->records, result->records);
  ReversingTarget third;
  ASSERT_TRUE(Run(suite, &third).has_value());
  EXPECT_EQ(third.n_asked, 0);
}

TEST_F(RunTest, WhatFailedIsAskedAgain) {
  const Suite suite = MakeSuite({"anna", "fail"});
  ReversingTarget target;
  const auto result = Run(suite, &target);
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->records.size(), 1u);
  EXPECT_EQ(result->faults, std::vector<std::string>{"fail: asked to fail"});
  ASSERT_TRUE(Run(suite, &target).has_value());
  EXPECT_EQ(target.n_asked, 3);
}

TEST_F(RunTest, AnotherRunIsRefused) {
  ReversingTarget target;
  ASSERT_TRUE(Run(MakeSuite({"anna"}), &target).has_value());
  EXPECT_TRUE(Error(MakeSuite({"anna"}, 2)).contains("suite/settings/setting: 2 here, 1 there"));
  EXPECT_TRUE(Error(MakeSuite({"anna", "bob"})).contains("suite/items: 2 here, 1 there"));
  EXPECT_TRUE(Error(MakeSuite({"bobo"})).contains("suite/sha256"));
  EXPECT_TRUE(Error(MakeSuite({"anna"}), "other").contains("target/model"));
  EXPECT_EQ(Error(MakeSuite({"anna"})), "no error");
}

TEST_F(RunTest, OneProcessAtATime) {
  const Suite suite = MakeSuite({"anna"});
  const auto writer = RunWriter::Open(dir_, Manifest(suite));
  ASSERT_TRUE(writer.has_value());
  EXPECT_TRUE(Error(suite).contains("another process"));
}

TEST_F(RunTest, DamageAndForeignFoldersAreNamed) {
  const Suite suite = MakeSuite({"anna"});
  ASSERT_EQ(Error(suite), "no error");
  std::ofstream(dir_ / "records.jsonl") << "{\"id\":\"anna\"}\n[1]\n";
  EXPECT_TRUE(Error(suite).contains("records.jsonl line 2"));
  fs::remove(dir_ / "manifest.json");
  EXPECT_TRUE(Error(suite).contains("holds no manifest.json"));
}

TEST(HashOf, ChangesWithWhatIsAsked) {
  const std::string hash = HashOf(MakeSuite({"a", "b"}));
  EXPECT_EQ(hash, HashOf(MakeSuite({"a", "b"})));
  EXPECT_NE(hash, HashOf(MakeSuite({"b", "a"})));
  EXPECT_NE(hash, HashOf(MakeSuite({"a", "b"}, 2)));
  Suite gold = MakeSuite({"a", "b"});
  gold.items[0].gold = 5;
  EXPECT_NE(hash, HashOf(gold));
}

TEST(Summarize, FlagsScoresAtTheEndAndBosNotOnce) {
  const Suite suite = MakeSuite({"anna", "otto"});
  std::vector<Json> records;
  for (const Item& item : suite.items) {
    records.push_back(MakeRecord(suite, item, {.text = item.id, .prompt_ids = {2, 2, 7}}));
  }
  const Json summary = Summarize("reverse", records);
  EXPECT_EQ(records[0]["bos_count"], 2);
  EXPECT_EQ(summary["flags"].size(), 2u);
  EXPECT_TRUE(summary["flags"].dump().contains("every answer is right"));
  EXPECT_TRUE(summary["flags"].dump().contains("<bos> stands 2 to 2 times"));
}

}  // namespace
}  // namespace nibble::measure
