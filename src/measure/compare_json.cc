// A report as JSON: everything that it holds.
#include "measure/compare.h"

namespace nibble::measure {
namespace {

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json();
}

Json ToJson(const std::optional<Interval>& interval) {
  return interval.has_value() ? Json::array({interval->low, interval->high}) : Json();
}

Json ToJson(const Metric& metric) {
  return {{"name", metric.name},
          {"reference", OrNull(metric.reference)},
          {"value", OrNull(metric.value)},
          {"difference", OrNull(metric.difference)},
          {"interval", ToJson(metric.interval)}};
}

Json ToJson(const Comparison& comparison) {
  Json metrics = Json::array();
  for (const Metric& metric : comparison.metrics) metrics.push_back(ToJson(metric));
  Json kinds = Json::object();
  for (const auto& [kind, score] : comparison.kinds) {
    kinds[kind] = {{"reference", score.reference}, {"value", score.value}, {"n", score.n}};
  }
  Json flips = Json::array();
  for (const Flip& flip : comparison.flips) {
    flips.push_back({{"id", flip.id},
                     {"prompt", flip.prompt},
                     {"expected", flip.expected},
                     {"reference_answer", flip.reference_answer},
                     {"answer", flip.answer},
                     {"gained", flip.gained}});
  }
  return {{"suite", comparison.suite},
          {"build", comparison.build},
          {"n", comparison.n},
          {"metrics", std::move(metrics)},
          {"mcnemar_p", OrNull(comparison.mcnemar_p)},
          {"gained", comparison.n_gained},
          {"lost", comparison.n_lost},
          {"identical", comparison.n_identical},
          {"kinds", std::move(kinds)},
          {"flips", std::move(flips)},
          {"verdict", comparison.verdict},
          {"notes", comparison.notes}};
}

Json ToJson(const SpeedComparison& speed) {
  return {{"build", speed.build},
          {"work", speed.row.work},
          {"context_tokens", speed.row.n_context_tokens},
          {"sequences", speed.row.n_sequences},
          {"reference_tokens_per_s", speed.reference.runs_tokens_per_s},
          {"tokens_per_s", speed.row.runs_tokens_per_s},
          {"ratio", speed.ratio},
          {"ratio_bounds", {speed.ratio_bounds.low, speed.ratio_bounds.high}}};
}

Json ToJson(const BuildFacts& build) {
  Json anatomy = Json::object();
  for (const Part& part : build.anatomy) anatomy[part.name] = part.n_bytes;
  Json scores = Json::object();
  for (const auto& [suite, score] : build.scores) scores[suite] = ToJson(score);
  return {{"name", build.name},
          {"format", build.format},
          {"target", build.target},
          {"weight_bytes", build.n_weight_bytes},
          {"anatomy", std::move(anatomy)},
          {"peak_resident_bytes", build.n_peak_bytes},
          {"scores", std::move(scores)},
          {"decode_tokens_per_s", OrNull(build.decode_tokens_per_s)},
          {"notes", build.notes}};
}

}  // namespace

Json ToJson(const Report& report) {
  Json json = {{"reference", report.reference},
               {"builds", Json::array()},
               {"comparisons", Json::array()},
               {"speeds", Json::array()},
               {"claims", Json::array()}};
  for (const BuildFacts& build : report.builds) json["builds"].push_back(ToJson(build));
  for (const Comparison& comparison : report.comparisons) {
    json["comparisons"].push_back(ToJson(comparison));
  }
  for (const SpeedComparison& speed : report.speeds) json["speeds"].push_back(ToJson(speed));
  for (const FormatClaim& claim : report.claims) {
    json["claims"].push_back(
        {{"format", claim.format}, {"qat", claim.qat}, {"same_format_non_qat", claim.non_qat}});
  }
  return json;
}

}  // namespace nibble::measure
