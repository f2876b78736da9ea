// Classification from one token: which of the labels the model would begin its answer with.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "measure/choice.h"
#include "measure/exact_questions.h"
#include "measure/json_lines.h"
#include "measure/python_random.h"
#include "measure/suite.h"

namespace nibble::measure {
namespace {

std::string_view WithoutLeadingSpace(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \n");
  return begin == text.npos ? std::string_view() : text.substr(begin);
}

// The one label that the token begins; nothing if there is none, or several.
std::optional<size_t> LabelOf(std::string_view token, const std::vector<std::string>& labels) {
  const std::string_view text = WithoutLeadingSpace(token);
  if (text.empty()) return std::nullopt;
  std::optional<size_t> found;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == text) return i;
    if (!labels[i].starts_with(text)) continue;
    if (found.has_value()) return std::nullopt;
    found = i;
  }
  return found;
}

// {column} is replaced by that column's text.
Result<std::string> Fill(const std::string& pattern, const Json& record, const std::string& where) {
  std::string text;
  for (size_t at = 0; at < pattern.size();) {
    const size_t open = pattern.find('{', at);
    const size_t close = open == pattern.npos ? open : pattern.find('}', open);
    if (close == pattern.npos) return text + pattern.substr(at);
    text += pattern.substr(at, open - at);
    const std::string column = pattern.substr(open + 1, close - open - 1);
    if (!record.contains(column)) return Fail("{}: has no column \"{}\"", where, column);
    const Json& value = record[column];
    text += value.is_string() ? value.get<std::string>() : value.dump();
    at = close + 1;
  }
  return text;
}

// A label's place in the list, as a number, a truth value, or the label itself.
Result<size_t> GoldOf(const Json& gold, const std::vector<std::string>& labels,
                      const std::string& where) {
  if (gold.is_boolean() && labels.size() == 2) return gold.get<bool>() ? 1 : 0;
  if (gold.is_number_integer()) {
    const auto index = gold.get<int64_t>();
    if (index >= 0 && std::cmp_less(index, labels.size())) return static_cast<size_t>(index);
  }
  if (gold.is_string()) {
    const auto found = std::ranges::find(labels, gold.get<std::string>());
    if (found != labels.end()) return static_cast<size_t>(found - labels.begin());
  }
  return Fail("{}: gold {} is no label and no label's number", where, gold.dump());
}

Json JudgeChoice(const Item& item, const Reply& reply) {
  const std::vector<std::string> labels = item.gold.at("labels");
  const size_t gold = item.gold.at("gold");
  const LabelScores scores =
      ScoreLabels(labels, reply.steps.empty() ? std::vector<TokenLogprob>() : reply.steps[0].top);
  const auto best = std::ranges::max_element(scores.probabilities);
  const auto predicted = static_cast<size_t>(best - scores.probabilities.begin());
  return {{"prompt", item.query.messages[0].content},
          {"expected", labels[gold]},
          {"labels", labels},
          {"labels_returned", scores.n_returned},
          {"probabilities", scores.probabilities},
          {"predicted", labels[predicted]},
          {"gold", gold},
          // What was never among the likely tokens is no answer.
          {"score", scores.n_returned > 0 && predicted == gold ? 1 : 0}};
}

void AddItem(Suite* suite, const ChoiceOptions& options, std::string id, std::string kind,
             std::string prompt, const std::vector<std::string>& labels, size_t gold) {
  suite->items.push_back({.id = std::move(id),
                          .kind = std::move(kind),
                          .query = {.messages = {{"user", std::move(prompt)}},
                                    .answer_lead = options.answer_lead,
                                    .max_tokens = 1,
                                    .n_top_logprobs = options.n_top_logprobs},
                          .gold = {{"labels", labels}, {"gold", gold}}});
}

// The exact questions with four answers each, which begin with different characters.
void AddOwnItems(Suite* suite, const ChoiceOptions& options, int n) {
  constexpr uint64_t kSeed = 2;
  constexpr size_t kLabels = 4;
  const std::vector<Question> questions = MakeQuestions(n, kSeed);
  PythonRandom random(kSeed);
  for (const Question& question : questions) {
    std::vector<std::string> labels = {question.expected};
    for (int tries = 0; labels.size() < kLabels && tries < 1000; ++tries) {
      const Question& other = questions[random.RandBelow(static_cast<uint32_t>(questions.size()))];
      const auto begins_alike = [&](const std::string& label) {
        return label[0] == other.expected[0];
      };
      if (other.kind != question.kind || std::ranges::any_of(labels, begins_alike)) continue;
      labels.push_back(other.expected);
    }
    const size_t gold = random.RandBelow(static_cast<uint32_t>(labels.size()));
    std::swap(labels[0], labels[gold]);
    AddItem(suite, options, fmt::format("{}", question.id), std::string(Name(question.kind)),
            question.prompt, labels, gold);
  }
}

Status AddRecord(Suite* suite, const ChoiceOptions& options, const Json& record,
                 const std::string& where) {
  if (!record.is_object()) return Fail("{}: expected an object", where);
  std::vector<std::string> labels = options.labels;
  if (labels.empty()) {
    const Json found = record.value(options.labels_column, Json());
    const auto is_text = [](const Json& label) { return label.is_string(); };
    if (!found.is_array() || !std::ranges::all_of(found, is_text)) {
      return Fail("{}: column \"{}\": expected a list of labels", where, options.labels_column);
    }
    labels = found;
  }
  if (labels.size() < 2) return Fail("{}: expected two labels at least", where);
  if (!record.contains(options.gold_column)) {
    return Fail("{}: has no column \"{}\"", where, options.gold_column);
  }
  NIBBLE_ASSIGN_OR_RETURN(const size_t gold, GoldOf(record[options.gold_column], labels, where));
  NIBBLE_ASSIGN_OR_RETURN(std::string prompt, Fill(options.prompt_pattern, record, where));
  const Json kind = record.value(options.kind_column, Json(""));
  const Json id = record.value("id", Json(std::to_string(suite->items.size())));
  AddItem(suite, options, id.is_string() ? id.get<std::string>() : id.dump(),
          kind.is_string() ? kind.get<std::string>() : kind.dump(), std::move(prompt), labels,
          gold);
  return {};
}

}  // namespace

LabelScores ScoreLabels(const std::vector<std::string>& labels,
                        const std::vector<TokenLogprob>& top) {
  constexpr double kBelowSmallest = 5;
  std::vector<double> mass(labels.size(), 0);
  double smallest = 0;
  for (const TokenLogprob& entry : top) {
    smallest = std::min(smallest, entry.logprob);
    const auto label = LabelOf(entry.token, labels);
    if (label.has_value()) mass[*label] += std::exp(entry.logprob);
  }
  LabelScores scores;
  for (double& share : mass) {
    scores.n_returned += share > 0 ? 1 : 0;
    if (share == 0) share = std::exp(smallest - kBelowSmallest);
  }
  const double sum = std::accumulate(mass.begin(), mass.end(), 0.0);
  for (const double share : mass) scores.probabilities.push_back(share / sum);
  return scores;
}

Result<Suite> ChoiceSuite(const ChoiceOptions& options, int n) {
  constexpr int kOwnItems = 200;
  Suite suite{
      .name = "choice",
      .settings = {{"top_logprobs", options.n_top_logprobs}, {"answer_lead", options.answer_lead}}};
  if (options.data.empty()) {
    AddOwnItems(&suite, options, n > 0 ? n : kOwnItems);
  } else {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<Json> records, ReadJsonLines(options.data));
    for (const Json& record : records) {
      if (n > 0 && std::cmp_equal(suite.items.size(), n)) break;
      NIBBLE_RETURN_IF_ERROR(
          AddRecord(&suite, options, record,
                    fmt::format("{}: record {}", options.data.string(), suite.items.size() + 1)));
    }
  }
  suite.judge = JudgeChoice;
  return suite;
}

}  // namespace nibble::measure
