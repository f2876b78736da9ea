// How the suites judge: final numbers, labels read from one token, what a data file must hold.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "measure/bfcl.h"
#include "measure/choice.h"
#include "measure/gsm8k.h"
#include "measure/json_lines.h"
#include "measure/suite.h"

namespace nibble::measure {
namespace {

TEST(FinalNumber, IsTheOneAfterTheLastAnswerElseTheLast) {
  EXPECT_EQ(FinalNumber("Answer: 5\nno, Answer: 7 of 9"), 7);
  EXPECT_EQ(FinalNumber("3 and 4 make 7."), 7);
  EXPECT_EQ(FinalNumber("Answer: $1,234.50"), 1234.5);
  EXPECT_EQ(FinalNumber("Answer: -12"), -12);
  EXPECT_EQ(FinalNumber("Answer: -$12"), -12);
  EXPECT_EQ(FinalNumber("it is 10-3"), 3);
  EXPECT_EQ(FinalNumber("Answer: none, but 8"), 8);
  EXPECT_EQ(FinalNumber("8 first. Answer: none"), 8);
  EXPECT_EQ(FinalNumber("1, 2, 3"), 3);
  EXPECT_EQ(FinalNumber("no number"), std::nullopt);
}

TEST(ScoreLabels, ReadsTokensThatAreOrBeginALabel) {
  const LabelScores scores = ScoreLabels(
      {"yes", "no"}, {{"yes", std::log(0.3)}, {" yes", std::log(0.1)}, {"n", std::log(0.2)}});
  EXPECT_EQ(scores.n_returned, 2);
  EXPECT_NEAR(scores.probabilities[0], 0.4 / 0.6, 1e-12);
}

TEST(ScoreLabels, AMissingLabelCountsAsTheSmallestMinusFive) {
  const LabelScores scores = ScoreLabels({"yes", "no"}, {{"yes", -0.5}, {"maybe", -3}});
  EXPECT_EQ(scores.n_returned, 1);
  EXPECT_NEAR(scores.probabilities[1], std::exp(-8) / (std::exp(-8) + std::exp(-0.5)), 1e-12);
}

TEST(ScoreLabels, ABeginningOfTwoLabelsIsNeither) {
  EXPECT_EQ(ScoreLabels({"Berlin", "Bern"}, {{"Ber", -0.1}}).n_returned, 0);
  EXPECT_EQ(ScoreLabels({"1", "10"}, {{"1", -0.1}}).n_returned, 1);
}

class DataTest : public testing::Test {
 protected:
  DataTest() : path_(std::filesystem::path(testing::TempDir()) / "nibble_suites_test.jsonl") {}
  ~DataTest() override { std::filesystem::remove(path_); }
  void Write(const std::string& text) const { std::ofstream(path_) << text; }

  std::filesystem::path path_;
};

TEST_F(DataTest, ChoiceTakesAnyColumns) {
  Write(
      "{\"passage\": \"P\", \"q\": \"Q\", \"answer\": true, \"id\": 7}\n\n"
      "{\"passage\": \"P2\", \"q\": \"Q2\", \"answer\": 0}\n");
  const auto suite = ChoiceSuite({.data = path_,
                                  .prompt_pattern = "{passage}: {q}?",
                                  .labels = {"no", "yes"},
                                  .gold_column = "answer"},
                                 0);
  ASSERT_TRUE(suite.has_value()) << suite.error().message;
  EXPECT_EQ(suite->items.at(0).query.messages[0].content, "P: Q?");
  EXPECT_EQ(suite->items[0].id, "7");
  EXPECT_EQ(suite->items[0].gold["gold"], 1);
  EXPECT_EQ(suite->items.at(1).gold["gold"], 0);
}

TEST_F(DataTest, ChoiceNamesWhatIsWrong) {
  const auto error = [&](const std::string& line) {
    Write(line);
    const auto suite = ChoiceSuite({.data = path_}, 0);
    return suite.has_value() ? "no error" : suite.error().message;
  };
  EXPECT_EQ(error(R"({"prompt": "p", "labels": ["a", "b"], "gold": "b"})"), "no error");
  EXPECT_TRUE(
      error(R"({"prompt": "p", "labels": ["a", "b"], "gold": "c"})").contains("gold \"c\""));
  EXPECT_TRUE(error(R"({"prompt": "p", "labels": ["a", "b"], "gold": 2})").contains("record 1"));
  EXPECT_TRUE(error(R"({"prompt": "p", "labels": ["a"], "gold": 0})").contains("two labels"));
  EXPECT_TRUE(error(R"({"labels": ["a", "b"], "gold": 0})").contains("no column \"prompt\""));
  EXPECT_TRUE(error(R"({"prompt": "p", "gold": 0})").contains("column \"labels\""));
  EXPECT_TRUE(error("[1]").contains("expected an object"));
  EXPECT_TRUE(error("\n{").contains("line 2"));
}

TEST(ChoiceSuite, OwnItemsHaveOneRightLabelAndDistinctBeginnings) {
  const auto suite = ChoiceSuite({}, 0);
  ASSERT_TRUE(suite.has_value());
  ASSERT_EQ(suite->items.size(), 200u);
  int places[4] = {};
  for (const Item& item : suite->items) {
    const std::vector<std::string> labels = item.gold["labels"];
    ASSERT_GE(labels.size(), 2u);
    std::set<char> beginnings;
    for (const std::string& label : labels) beginnings.insert(label[0]);
    EXPECT_EQ(beginnings.size(), labels.size());
    ++places[item.gold["gold"].get<int>()];
  }
  for (const int n : places) EXPECT_GT(n, 20);
}

TEST_F(DataTest, Gsm8kReadsThePublicFormat) {
  Write("{\"question\": \"1+1?\", \"answer\": \"1+1=2\\n#### 1,002\"}\n");
  const auto suite = Gsm8kSuite(path_, 0);
  ASSERT_TRUE(suite.has_value()) << suite.error().message;
  const Item& item = suite->items.at(0);
  EXPECT_EQ(item.gold, 1002.0);
  EXPECT_EQ(suite->judge(item, {.text = "So Answer: 1002"})["score"], 1);
  EXPECT_EQ(suite->judge(item, {.text = "Answer: 1003"})["score"], 0);
  EXPECT_EQ(suite->judge(item, {.text = "none"})["score"], 0);
  Write("{\"question\": \"1+1?\", \"answer\": \"2\"}\n");
  EXPECT_TRUE(Gsm8kSuite(path_, 0).error().message.contains("record 1"));
}

TEST_F(DataTest, KlCutsBetweenWords) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "wörd ";
  Write(text);
  const auto suite = KlSuite(path_, 0, 5);
  ASSERT_TRUE(suite.has_value());
  std::string joined;
  for (const Item& item : suite->items) {
    EXPECT_LE(item.query.text.size(), 1001u);
    joined += item.query.text;
  }
  EXPECT_EQ(joined, text);
}

TEST(ToTool, WritesJsonSchema) {
  const Json tool =
      ToTool(Json::parse(R"({"name": "a.b", "parameters": {"type": "dict", "properties":
      {"x": {"type": "float"}, "y": {"type": "array", "items": {"type": "tuple"}},
       "z": {"type": "any"}}}})"));
  EXPECT_EQ(tool, Json::parse(R"({"type": "function", "function": {"name": "a_b", "parameters":
      {"type": "object", "properties": {"x": {"type": "number"},
       "y": {"type": "array", "items": {"type": "array"}}, "z": {}}}}})"));
}

}  // namespace
}  // namespace nibble::measure
