// Builds against a reference, record by record: what differs, by how much, and how sure that is.
//
// Refuses what is not comparable: suites that did not ask the same, runs that lack records of each
// other. What may be compared but not taken at face value carries a note. Tested by compare_test.cc
// and tests/interop/test_compare.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "measure/run.h"
#include "measure/statistics.h"

namespace nibble::measure {

// Everything that was measured of one build.
struct Build {
  std::string name = {};
  std::map<std::string, Run> runs = {};  // by suite, "bench" among them
};

// "DIR" or "NAME=DIR"; DIR is a run, or holds runs in its folders. Errors: no run there, two runs
// of one suite.
Result<Build> ReadBuild(const std::string& argument);

// One answer that is right in one build and wrong in the other.
struct Flip {
  std::string id = {};
  std::string prompt = {};
  std::string expected = {};
  std::string reference_answer = {};
  std::string answer = {};
  bool gained = false;  // right in the build, wrong in the reference
};

// A figure of both sides. difference: build minus reference, with its 95 % interval where records
// carry the figure.
struct Metric {
  std::string name = {};
  std::optional<double> reference = {};
  std::optional<double> value = {};
  std::optional<double> difference = {};
  std::optional<Interval> interval = {};
  bool is_share = false;  // shown in percent
};

struct KindScore {
  double reference = 0;
  double value = 0;
  int64_t n = 0;
};

// One suite, one build against the reference.
struct Comparison {
  std::string suite = {};
  std::string build = {};
  int64_t n = 0;
  std::vector<Metric> metrics = {};      // of a scored suite the first one is "accuracy"
  std::optional<double> mcnemar_p = {};  // where scores are right or wrong
  int64_t n_gained = 0;
  int64_t n_lost = 0;
  int64_t n_identical = 0;  // answers
  std::map<std::string, KindScore> kinds = {};
  std::vector<Flip> flips = {};
  std::string verdict = {};
  std::vector<std::string> notes = {};
};

struct SpeedFigure {
  std::string work = {};
  int64_t n_context_tokens = 0;
  int64_t n_sequences = 1;
  std::vector<double> runs_tokens_per_s = {};
};

struct SpeedComparison {
  std::string build = {};
  SpeedFigure reference = {};
  SpeedFigure row = {};
  double ratio = 0;  // of the medians
  Interval ratio_bounds =
      {};  // the build's slowest run over the reference's fastest, and the reverse
};

struct Part {
  std::string name = {};
  int64_t n_bytes = 0;
};

// What a report says of a build by itself.
struct BuildFacts {
  std::string name = {};
  std::string format = {};  // "" if unknown
  std::string target = {};  // the model's directory or the server's URL
  int64_t n_weight_bytes = 0;
  std::vector<Part> anatomy = {};
  int64_t n_peak_bytes = 0;
  std::map<std::string, Metric> scores = {};  // accuracy by suite, with Wilson's interval
  std::optional<double> decode_tokens_per_s = {};
  std::vector<std::string> notes = {};
};

// Which formats a claim about QAT can be made for: those with a build that is no QAT.
struct FormatClaim {
  std::string format = {};
  std::vector<std::string> qat = {};
  std::vector<std::string> non_qat = {};  // empty: no claim
};

struct Heat {
  std::string build = {};
  // (nominal length in tokens, depth in percent) -> share found
  std::map<int64_t, std::map<int64_t, double>> found = {};
};

struct Report {
  std::string reference = {};
  std::vector<BuildFacts> builds = {};       // the reference first
  std::vector<Comparison> comparisons = {};  // by suite, then as the builds
  std::vector<SpeedComparison> speeds = {};
  std::vector<FormatClaim> claims = {};
  std::vector<Heat> heats = {};  // of the suite "long"
};

// reference: a build's name, or "" for the first one. non_qat: names of builds whose weights were
// not trained for their format. Errors name suite, builds and what differs.
Result<Report> Compare(std::vector<Build> builds, const std::string& reference,
                       const std::set<std::string>& non_qat);

// What every form but JSON shows.
struct Table {
  std::string title = {};
  std::vector<std::string> head = {};
  std::vector<std::vector<std::string>> rows = {};
};
std::vector<Table> TablesOf(const Report& report);
// One line per comparison, and what is to be kept in mind.
std::vector<std::string> RemarksOf(const Report& report);

// Forms of a report. JSON holds everything; text and Markdown the tables; HTML is one page with
// plots.
Json ToJson(const Report& report);
std::string ToText(const Report& report);
std::string ToMarkdown(const Report& report);
std::string ToHtml(const Report& report);

}  // namespace nibble::measure
