// Builds against a reference: what is compared, what is refused, what carries a note.
#include "measure/compare.h"

#include <gtest/gtest.h>

#include <cmath>

#include "measure/pairing.h"

namespace nibble::measure {
namespace {

// A run whose record i is right where `right` has a '1'.
Run MakeRun(const std::string& right, Json target = Json::object()) {
  Run run;
  run.manifest = {{"suite", {{"name", "forty"}, {"sha256", "s"}, {"items", right.size()}}},
                  {"target", std::move(target)}};
  for (size_t i = 0; i < right.size(); ++i) {
    run.records.push_back({{"id", std::to_string(i)},
                           {"kind", i % 2 == 0 ? "even" : "odd"},
                           {"prompt_sha256", "p"},
                           {"answer", right[i] == '1' ? "yes" : "no"},
                           {"score", right[i] - '0'}});
  }
  run.summary = Summarize("forty", run.records);
  return run;
}

std::string ErrorOf(std::vector<Build> builds, const std::string& reference = "") {
  const auto report = Compare(std::move(builds), reference, {});
  return report.has_value() ? "no error" : report.error().message;
}

TEST(Compare, CountsFlipsAndKinds) {
  const auto report = Compare(
      {{"a", {{"forty", MakeRun("110010")}}}, {"b", {{"forty", MakeRun("011010")}}}}, "", {});
  ASSERT_TRUE(report.has_value()) << report.error().message;
  const Comparison& comparison = report->comparisons.at(0);
  EXPECT_EQ(comparison.n_gained, 1);
  EXPECT_EQ(comparison.n_lost, 1);
  EXPECT_EQ(comparison.n_identical, 4);
  EXPECT_EQ(comparison.kinds.at("even").reference, 2);
  EXPECT_EQ(comparison.kinds.at("even").value, 2);
  EXPECT_EQ(comparison.kinds.at("odd").n, 3);
  EXPECT_EQ(*comparison.mcnemar_p, 1);
  EXPECT_EQ(*comparison.metrics.at(0).difference, 0);
  ASSERT_EQ(comparison.flips.size(), 2u);
  EXPECT_EQ(comparison.flips[0].id, "0");
  EXPECT_FALSE(comparison.flips[0].gained);
}

// Two of fifty is nothing to rank builds by (field report L5).
TEST(Compare, TwoOfFiftyShowNoDifference) {
  std::string right(50, '1');
  right[7] = '0';
  std::string other = right;
  other[20] = other[30] = '0';
  const auto report =
      Compare({{"a", {{"forty", MakeRun(right)}}}, {"b", {{"forty", MakeRun(other)}}}}, "", {});
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(report->comparisons[0].verdict.starts_with("no difference shown"));
  EXPECT_EQ(*report->comparisons[0].mcnemar_p, 0.5);
  EXPECT_TRUE(ToText(*report).contains("no difference shown"));
}

TEST(Compare, NoDifferenceAtAllIsBoundedToo) {
  const auto run = MakeRun(std::string(399, '1') + "0");
  const auto report = Compare({{"a", {{"forty", run}}}, {"b", {{"forty", run}}}}, "", {});
  ASSERT_TRUE(report.has_value());
  // 1 - 0.05^(1/400)
  EXPECT_EQ(report->comparisons[0].verdict,
            "no difference shown (no score differs; 95 %: fewer than 0.7 % do)");
}

TEST(Compare, ALargeDifferenceIsCalledOne) {
  const auto report =
      Compare({{"a", {{"forty", MakeRun(std::string(60, '1') + "0")}}},
               {"b", {{"forty", MakeRun(std::string(40, '1') + std::string(21, '0'))}}}},
              "b", {});
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->reference, "b");
  EXPECT_TRUE(report->comparisons[0].verdict.starts_with("better"));
  EXPECT_LT(*report->comparisons[0].mcnemar_p, 1e-5);
}

// Field report L5: scores of 0 or 100 %.
TEST(Compare, ScoresAtTheEndCarryANote) {
  const auto report =
      Compare({{"a", {{"forty", MakeRun("1111")}}}, {"b", {{"forty", MakeRun("0000")}}}}, "", {});
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(
      ToText(*report).contains("every answer is right: the suite cannot show a difference: a"));
  EXPECT_TRUE(ToText(*report).contains("no answer is right: check the setup: b"));
}

TEST(Compare, RefusesWhatIsNotComparable) {
  const auto run = MakeRun("1100");
  auto other = run;
  other.manifest["suite"]["settings"] = {{"max_tokens", 5}};
  EXPECT_EQ(
      ErrorOf({{"a", {{"forty", run}}}, {"b", {{"forty", other}}}}),
      "suite forty: b against a: not comparable: settings: {\"max_tokens\":5} here, null there");
  other = run;
  other.records.pop_back();
  EXPECT_TRUE(
      ErrorOf({{"a", {{"forty", run}}}, {"b", {{"forty", other}}}}).contains("b has 3 of 4"));
  other = run;
  other.records[1]["id"] = "x";
  EXPECT_TRUE(ErrorOf({{"a", {{"forty", run}}}, {"b", {{"forty", other}}}})
                  .contains("record \"1\" is in the reference only"));
  other = run;
  other.records[1]["prompt_sha256"] = "q";
  EXPECT_TRUE(
      ErrorOf({{"a", {{"forty", run}}}, {"b", {{"forty", other}}}}).contains("prompts differ"));
  EXPECT_TRUE(ErrorOf({{"a", {{"forty", run}}}, {"a", {{"forty", run}}}}).contains("NAME=DIR"));
  EXPECT_TRUE(
      ErrorOf({{"a", {{"forty", run}}}, {"b", {{"forty", run}}}}, "c").contains("--reference"));
  other = run;
  other.records[0]["score"] = "one";
  EXPECT_TRUE(ErrorOf({{"a", {{"forty", run}}}, {"b", {{"forty", other}}}})
                  .contains("not what eval and bench write"));
}

// Field report L4, two sides.
TEST(Compare, PromptsThatBecameOtherTokensCarryANote) {
  auto run = MakeRun("1100");
  auto other = run;
  for (Json& record : run.records) record["bos_count"] = 1;
  for (Json& record : other.records) record["bos_count"] = 0;
  const auto report = Compare({{"a", {{"forty", run}}}, {"b", {{"forty", other}}}}, "", {});
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(report->comparisons[0].notes.at(0).contains("4 of 4 records (record 0: bos_count 1"));
}

// Field report L6: what comes from the format is not credited to QAT.
TEST(Compare, AFormatWithoutItsUntrainedTwinMakesNoClaim) {
  const auto packed = MakeRun("1100", {{"format", "q4"}});
  const auto plain = MakeRun("1101", {{"format", "bf16"}});
  const std::vector<Build> builds = {
      {"a", {{"forty", packed}}}, {"b", {{"forty", packed}}}, {"c", {{"forty", plain}}}};
  const auto report = Compare(builds, "", {"b"});
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->claims.size(), 2u);
  EXPECT_EQ(report->claims[0].non_qat, std::vector<std::string>{"b"});
  EXPECT_TRUE(report->claims[1].non_qat.empty());
  EXPECT_TRUE(ToText(*report).contains("same format, non-QAT"));
  EXPECT_TRUE(ToText(*report).contains("missing: no claim"));
}

Run MakeBench(std::vector<double> tokens_per_s) {
  Run run;
  run.manifest = {{"suite", {{"name", "bench"}}}, {"target", Json::object()}};
  run.summary = {{"rows",
                  {{{"work", "decode"},
                    {"context_tokens", 100},
                    {"sequences", 1},
                    {"runs_tokens_per_s", std::move(tokens_per_s)}}}}};
  return run;
}

TEST(Compare, SpeedIsARatioOfMediansWithItsBounds) {
  const auto report = Compare(
      {{"a", {{"bench", MakeBench({10, 12, 11})}}}, {"b", {{"bench", MakeBench({20, 22, 33})}}}},
      "", {});
  ASSERT_TRUE(report.has_value());
  const SpeedComparison& speed = report->speeds.at(0);
  EXPECT_DOUBLE_EQ(speed.ratio, 2);
  EXPECT_DOUBLE_EQ(speed.ratio_bounds.low, 20.0 / 12);
  EXPECT_DOUBLE_EQ(speed.ratio_bounds.high, 3.3);
}

Run MakeKl(double p, Json target) {
  Run run;
  run.manifest = {{"suite", {{"name", "kl"}, {"items", 1}}}, {"target", std::move(target)}};
  Json step = Json::array();
  for (const auto& [token, share] : {std::pair("a", p), std::pair("b", 1 - p)}) {
    step.push_back(Json::array({token, std::log(share)}));
  }
  Json record = {{"id", "0"}, {"answer", ""}};
  record["tokens"] = Json::array({"a"});
  record["logprobs"] = Json::array({std::log(p)});
  record["top"] = Json::array({std::move(step)});
  run.records.push_back(std::move(record));
  return run;
}

// Field report L1: QAT judged against another model.
TEST(Compare, KlIsOnlyAboutPackingIfTheReferenceIsTheSource) {
  const Json source = {{"fingerprint", "f"}};
  const Json repack = {{"fingerprint", "g"}, {"source_fingerprint", "f"}};
  const Json stranger = {{"fingerprint", "h"}, {"source_fingerprint", "x"}};
  const auto notes = [&](const Json& target) {
    const auto report = Compare(
        {{"a", {{"kl", MakeKl(0.5, source)}}}, {"b", {{"kl", MakeKl(0.25, target)}}}}, "", {});
    if (!report.has_value()) {
      ADD_FAILURE() << report.error().message;
      return std::vector<std::string>{"failed"};
    }
    const Metric& kl = report->comparisons[0].metrics.at(1);
    EXPECT_NEAR(*kl.value, 0.5 * std::log(2) + 0.5 * std::log(0.5 / 0.75), 1e-12);
    EXPECT_NEAR(*report->comparisons[0].metrics.at(0).value, 4, 1e-9);  // perplexity
    return report->comparisons[0].notes;
  };
  EXPECT_TRUE(notes(repack).empty());
  EXPECT_TRUE(notes(source).empty());
  EXPECT_TRUE(notes(stranger).at(0).contains("NOT this build's source"));
  EXPECT_TRUE(notes(Json::object()).at(0).contains("not known"));
}

TEST(Compare, TheTokenThatEndsAnAnswerIsNotListedByAll) {
  const auto run_of = [](std::vector<std::string> tokens) {
    measure::Run run;
    run.manifest = {{"suite", {{"name", "identity"}, {"items", 1}}}, {"target", Json::object()}};
    run.records.push_back({{"id", "0"},
                           {"answer", "5"},
                           {"finish_reason", "stop"},
                           {"completion_tokens", 2},
                           {"tokens", std::move(tokens)}});
    return run;
  };
  const auto verdict = [&](std::vector<std::string> tokens) {
    const auto report = Compare({{"a", {{"identity", run_of({"5", "<turn|>"})}}},
                                 {"b", {{"identity", run_of(std::move(tokens))}}}},
                                "", {});
    return report.has_value() ? report->comparisons[0].verdict : report.error().message;
  };
  EXPECT_EQ(verdict({"5"}), "token by token the same");
  EXPECT_EQ(verdict({"5", ""}), "token by token the same");
  EXPECT_EQ(verdict({"6"}), "1 of 1 answers part, at token 0 in the median");
}

TEST(StepDivergence, IsABoundFromBelow) {
  const auto top = [](std::vector<std::pair<std::string, double>> entries) {
    Json json = Json::array();
    for (const auto& [token, p] : entries) json.push_back({token, std::log(p)});
    return json;
  };
  const double whole = 0.5 * std::log(0.5 / 0.4) + 0.3 * std::log(0.3 / 0.2) +
                       0.1 * std::log(0.1 / 0.3) + 0.1 * std::log(0.1 / 0.1);
  const Json p = top({{"a", 0.5}, {"b", 0.3}, {"c", 0.1}, {"d", 0.1}});
  EXPECT_NEAR(StepDivergence(p, top({{"a", 0.4}, {"b", 0.2}, {"c", 0.3}, {"d", 0.1}})), whole,
              1e-9);
  // The same with the best two only: the others are one outcome of 0.2 and 0.4.
  const double coarse =
      0.5 * std::log(0.5 / 0.4) + 0.3 * std::log(0.3 / 0.2) + 0.2 * std::log(0.2 / 0.4);
  EXPECT_NEAR(StepDivergence(top({{"a", 0.5}, {"b", 0.3}}), top({{"a", 0.4}, {"b", 0.2}})), coarse,
              1e-12);
  EXPECT_LT(coarse, whole);
  EXPECT_EQ(StepDivergence(p, p), 0);
}

}  // namespace
}  // namespace nibble::measure
