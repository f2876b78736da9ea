#include "measure/pairing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace nibble::measure {
namespace {

std::string TextOf(const Json& record, const char* key) {
  const Json value = record.value(key, Json());
  if (value.is_string()) return value.get<std::string>();
  return value.is_null() ? "" : value.dump();
}

// What the model said: text, and its calls if there are any, whose arguments count as values: each
// server writes them with spaces of its own.
std::string AnswerOf(const Json& record) {
  std::string answer = TextOf(record, "answer");
  for (const Json& call : record.value("tool_calls", Json::array())) {
    const std::string arguments = TextOf(call, "arguments");
    const Result<Json> values = ParseJson(arguments, "arguments");
    answer += TextOf(call, "name") + (values.has_value() ? values->dump() : arguments);
  }
  return answer;
}

bool IsBinary(double score) { return score == 0 || score == 1; }

void AddFlip(const RecordPair& pair, bool gained, Comparison* comparison) {
  const auto& [reference, build] = pair;
  comparison->flips.push_back({.id = TextOf(*reference, "id"),
                               .prompt = TextOf(*reference, "prompt"),
                               .expected = TextOf(*reference, "expected"),
                               .reference_answer = AnswerOf(*reference),
                               .answer = AnswerOf(*build),
                               .gained = gained});
}

Metric DifferenceOf(std::string name, std::span<const double> reference,
                    std::span<const double> build) {
  std::vector<double> differences(build.size());
  for (size_t i = 0; i < build.size(); ++i) differences[i] = build[i] - reference[i];
  return {.name = std::move(name),
          .reference = Mean(reference),
          .value = Mean(build),
          .difference = Mean(differences),
          .interval = BootstrapMean(differences)};
}

// Prompts that became other tokens show a template or a <bos> that differs.
void NoteTokenisation(std::span<const RecordPair> pairs, Comparison* comparison) {
  for (const char* key : {"bos_count", "first_prompt_ids", "prompt_tokens"}) {
    const auto differs = [&](const RecordPair& pair) {
      const auto& [a, b] = pair;
      return a->contains(key) && b->contains(key) && (*a)[key] != (*b)[key];
    };
    const auto n = std::ranges::count_if(pairs, differs);
    if (n == 0) continue;
    const auto& [a, b] = *std::ranges::find_if(pairs, differs);
    comparison->notes.push_back(
        fmt::format("the same prompts became other tokens in {} of {} records (record {}: {} {} "
                    "against {}): templates or <bos> differ",
                    n, pairs.size(), TextOf(*a, "id"), key, (*a)[key].dump(), (*b)[key].dump()));
    return;
  }
}

std::string VerdictOn(const Metric& accuracy, const Comparison& comparison) {
  if (comparison.n_gained + comparison.n_lost == 0) {
    // The bootstrap knows no spread then; the binomial bound says what may have been missed.
    const double missed = 1 - std::pow(0.05, 1 / static_cast<double>(comparison.n));
    return fmt::format("no difference shown (no score differs; 95 %: fewer than {:.1f} % do)",
                       100 * missed);
  }
  const auto percent = [](double share) { return fmt::format("{:+.1f}", 100 * share); };
  const std::string bounds =
      fmt::format("{} points, 95 %: {} to {}", percent(*accuracy.difference),
                  percent(accuracy.interval->low), percent(accuracy.interval->high));
  if (accuracy.interval->Contains(0)) return "no difference shown (" + bounds + ")";
  return (*accuracy.difference > 0 ? "better (" : "worse (") + bounds + ")";
}

}  // namespace

Result<std::vector<RecordPair>> PairRecords(const std::vector<Json>& reference,
                                            const std::vector<Json>& build) {
  std::unordered_map<std::string, const Json*> by_id;
  for (const Json& record : build) by_id[record.at("id")] = &record;
  std::vector<RecordPair> pairs;
  for (const Json& record : reference) {
    const std::string id = record.at("id");
    const auto found = by_id.find(id);
    if (found == by_id.end())
      return Fail("record {} is in the reference only", QuoteForMessage(id));
    if (record.value("prompt_sha256", "") != found->second->value("prompt_sha256", "")) {
      return Fail("record {}: the prompts differ", QuoteForMessage(id));
    }
    pairs.emplace_back(&record, found->second);
    by_id.erase(found);
  }
  if (!by_id.empty()) {
    return Fail("record {} is not in the reference", QuoteForMessage(by_id.begin()->first));
  }
  return pairs;
}

void CompareScores(std::span<const RecordPair> pairs, Comparison* comparison) {
  NoteTokenisation(pairs, comparison);
  std::vector<double> before;
  std::vector<double> after;
  bool all_binary = true;
  for (const RecordPair& pair : pairs) {
    const auto& [reference, build] = pair;
    comparison->n_identical += AnswerOf(*reference) == AnswerOf(*build) ? 1 : 0;
    if (!reference->contains("score") || !build->contains("score")) continue;
    const double a = (*reference)["score"];
    const double b = (*build)["score"];
    before.push_back(a);
    after.push_back(b);
    all_binary = all_binary && IsBinary(a) && IsBinary(b);
    if (reference->contains("kind")) {
      KindScore& kind = comparison->kinds[TextOf(*reference, "kind")];
      kind.reference += a;
      kind.value += b;
      ++kind.n;
    }
    if (a == b) continue;
    ++(b > a ? comparison->n_gained : comparison->n_lost);
    AddFlip(pair, b > a, comparison);
  }
  comparison->n = static_cast<int64_t>(pairs.size());
  if (before.empty()) return;
  Metric accuracy = DifferenceOf("accuracy", before, after);
  accuracy.is_share = true;
  if (all_binary) comparison->mcnemar_p = McNemarExact(comparison->n_gained, comparison->n_lost);
  comparison->verdict = VerdictOn(accuracy, *comparison);
  comparison->metrics.push_back(std::move(accuracy));
}

void CompareForecasts(std::span<const RecordPair> pairs, Comparison* comparison) {
  std::vector<Forecast> forecasts[2];
  std::vector<double> brier[2];
  for (const auto& [reference, build] : pairs) {
    if (!reference->contains("probabilities") || !build->contains("probabilities")) return;
    int side = 0;
    for (const Json* record : {reference, build}) {
      Forecast forecast{.probabilities = (*record)["probabilities"],
                        .gold = (*record)["gold"].get<size_t>()};
      brier[side].push_back(BrierScore({&forecast, 1}));
      forecasts[side++].push_back(std::move(forecast));
    }
  }
  if (pairs.empty()) return;
  const double before = ExpectedCalibrationError(forecasts[0]);
  const double after = ExpectedCalibrationError(forecasts[1]);
  comparison->metrics.push_back({.name = "calibration error",
                                 .reference = before,
                                 .value = after,
                                 .difference = after - before,
                                 .interval = {}});
  comparison->metrics.push_back(DifferenceOf("Brier score", brier[0], brier[1]));
}

}  // namespace nibble::measure
