#include "measure/compare.h"

#include <fmt/format.h>

#include <algorithm>

#include "measure/pairing.h"
#include "measure/run.h"

namespace nibble::measure {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBench = "bench";

Status AddRun(const fs::path& dir, Build* build) {
  NIBBLE_ASSIGN_OR_RETURN(Run run, ReadRun(dir));
  const std::string suite = run.manifest.value(Json::json_pointer("/suite/name"), std::string());
  if (suite.empty()) return Fail("{}: names no suite", (dir / kManifest).string());
  if (!build->runs.emplace(suite, std::move(run)).second) {
    return Fail("{}: build {} has another run of suite {}", dir.string(), build->name, suite);
  }
  return {};
}

std::vector<SpeedFigure> SpeedFiguresOf(const Run& run) {
  std::vector<SpeedFigure> rows;
  for (const Json& row : run.summary.value("rows", Json::array())) {
    rows.push_back({.work = row.value("work", ""),
                    .n_context_tokens = row.value("context_tokens", int64_t{0}),
                    .n_sequences = row.value("sequences", int64_t{1}),
                    .runs_tokens_per_s = row.value("runs_tokens_per_s", std::vector<double>())});
  }
  std::erase_if(rows, [](const SpeedFigure& row) { return row.runs_tokens_per_s.empty(); });
  return rows;
}

// Of any run, since all are of the same weights: the first that says something.
Json FactOf(const Build& build, const char* pointer) {
  for (const auto& [suite, run] : build.runs) {
    const Json fact = run.manifest.value(Json::json_pointer(pointer), Json());
    if (!fact.is_null()) return fact;
  }
  return nullptr;
}

std::string TextFact(const Build& build, const char* pointer) {
  const Json fact = FactOf(build, pointer);
  return fact.is_string() ? fact.get<std::string>() : "";
}

BuildFacts FactsOf(const Build& build) {
  BuildFacts facts{.name = build.name,
                   .format = TextFact(build, "/target/format"),
                   .target = TextFact(build, "/facts/model")};
  if (facts.target.empty()) facts.target = TextFact(build, "/target/url");
  if (const Json anatomy = FactOf(build, "/facts/anatomy"); anatomy.is_object()) {
    facts.n_weight_bytes = anatomy.value("bytes", int64_t{0});
    for (const Json& part : anatomy.value("parts", Json::array())) {
      facts.anatomy.push_back({.name = part.at("part"), .n_bytes = part.at("bytes")});
    }
  }
  int64_t n_bench_bytes = 0;
  for (const auto& [suite, run] : build.runs) {
    const int64_t n_peak_bytes = run.summary.value("peak_resident_bytes", int64_t{0});
    facts.n_peak_bytes = std::max(facts.n_peak_bytes, n_peak_bytes);
    // A suite's own data is part of its peak; bench has next to none.
    if (suite == kBench) n_bench_bytes = n_peak_bytes;
    for (const Json& flag : run.summary.value("flags", Json::array())) {
      facts.notes.push_back(fmt::format("{}: {}", suite, flag.get<std::string>()));
    }
    if (run.summary.contains("accuracy")) {
      const Json& bounds = run.summary["interval"];
      facts.scores[suite] = {.name = "accuracy",
                             .reference = {},
                             .value = run.summary["accuracy"].get<double>(),
                             .difference = {},
                             .interval = Interval{bounds[0], bounds[1]},
                             .is_share = true};
    }
    if (suite != kBench) continue;
    for (const SpeedFigure& row : SpeedFiguresOf(run)) {
      if (row.work != "decode" || row.n_sequences != 1) continue;
      facts.decode_tokens_per_s = Median(row.runs_tokens_per_s);
      break;
    }
  }
  if (n_bench_bytes > 0) facts.n_peak_bytes = n_bench_bytes;
  return facts;
}

// KL says how far a repack is from its source. From any other model it measures another question.
void NoteSource(const Build& reference, const Build& build, Comparison* comparison) {
  const std::string of_reference = TextFact(reference, "/target/fingerprint");
  const std::string source_of_reference = TextFact(reference, "/target/source_fingerprint");
  const std::string of_build = TextFact(build, "/target/fingerprint");
  const std::string source = TextFact(build, "/target/source_fingerprint");
  if (of_reference.empty() || (of_build.empty() && source.empty())) {
    comparison->notes.push_back(
        "it is not known whether the reference is this build's source: "
        "a divergence from another model says nothing about the packing");
  } else if (source != of_reference && of_build != of_reference &&
             (source.empty() || source != source_of_reference) && of_build != source_of_reference) {
    comparison->notes.push_back(
        "the reference is NOT this build's source: this is how far two models are apart, "
        "not what packing cost");
  }
}

Result<Comparison> CompareRuns(const std::string& suite, const Build& reference,
                               const Build& build) {
  const Run& before = reference.runs.at(suite);
  const Run& after = build.runs.at(suite);
  const std::string where =
      fmt::format("suite {}: {} against {}", suite, build.name, reference.name);
  const std::string difference =
      FirstDifference(after.manifest.at("suite"), before.manifest.at("suite"));
  if (!difference.empty()) return Fail("{}: not comparable: {}", where, difference);
  for (const auto& [side, run] : {std::pair(&reference, &before), std::pair(&build, &after)}) {
    if (run->records.size() == before.manifest["suite"].value("items", size_t{0})) continue;
    return Fail("{}: not comparable: {} has {} of {} records; `nibble eval --out` goes on with it",
                where, side->name, run->records.size(), before.manifest["suite"]["items"].dump());
  }
  const Result<std::vector<RecordPair>> pairs = PairRecords(before.records, after.records);
  if (!pairs.has_value()) return Fail("{}: not comparable: {}", where, pairs.error().message);
  Comparison comparison{.suite = suite, .build = build.name};
  CompareScores(*pairs, &comparison);
  CompareForecasts(*pairs, &comparison);
  if (suite == "identity") CompareTokens(*pairs, &comparison);
  if (suite == "kl") {
    CompareDistributions(*pairs, &comparison);
    NoteSource(reference, build, &comparison);
  }
  return comparison;
}

Result<std::vector<SpeedComparison>> CompareSpeeds(const Build& reference, const Build& build) {
  const Run& before = reference.runs.at(kBench);
  const Run& after = build.runs.at(kBench);
  const std::string difference =
      FirstDifference(after.manifest.at("suite"), before.manifest.at("suite"));
  if (!difference.empty()) {
    return Fail("bench: {} against {}: not comparable: {}", build.name, reference.name, difference);
  }
  std::vector<SpeedComparison> speeds;
  const std::vector<SpeedFigure> rows = SpeedFiguresOf(after);
  for (SpeedFigure& row : SpeedFiguresOf(before)) {
    const auto other = std::ranges::find_if(rows, [&](const SpeedFigure& candidate) {
      return candidate.work == row.work && candidate.n_context_tokens == row.n_context_tokens &&
             candidate.n_sequences == row.n_sequences;
    });
    if (other == rows.end()) continue;
    const auto [slowest, fastest] = std::ranges::minmax(row.runs_tokens_per_s);
    const auto [other_slowest, other_fastest] = std::ranges::minmax(other->runs_tokens_per_s);
    speeds.push_back({.build = build.name,
                      .reference = row,
                      .row = *other,
                      .ratio = Median(other->runs_tokens_per_s) / Median(row.runs_tokens_per_s),
                      .ratio_bounds = {other_slowest / fastest, other_fastest / slowest}});
  }
  return speeds;
}

std::vector<FormatClaim> ClaimsOf(const std::vector<BuildFacts>& builds,
                                  const std::set<std::string>& non_qat) {
  std::vector<FormatClaim> claims;
  for (const BuildFacts& build : builds) {
    if (build.format.empty()) continue;
    auto claim = std::ranges::find(claims, build.format, &FormatClaim::format);
    if (claim == claims.end()) {
      claim = claims.insert(claims.end(), {.format = build.format, .qat = {}, .non_qat = {}});
    }
    (non_qat.contains(build.name) ? claim->non_qat : claim->qat).push_back(build.name);
  }
  std::erase_if(claims, [](const FormatClaim& claim) { return claim.qat.empty(); });
  return claims;
}

// Share of needles found at each length and depth; kinds of `long` are "LENGTH/DEPTH".
Heat HeatOf(const std::string& build, const Run& run) {
  Heat heat{.build = build, .found = {}};
  const Json kinds = run.summary.value("kinds", Json::object());
  for (const auto& [kind, counts] : kinds.items()) {
    const size_t slash = kind.find('/');
    if (slash == kind.npos) continue;
    heat.found[std::stoll(kind.substr(0, slash))][std::stoll(kind.substr(slash + 1))] =
        counts.at("correct").get<double>() / counts.at("total").get<double>();
  }
  return heat;
}

Status PutReferenceFirst(const std::string& reference, std::vector<Build>* builds) {
  for (auto build = builds->begin(); build != builds->end(); ++build) {
    if (std::ranges::count(*builds, build->name, &Build::name) > 1) {
      return Fail("two builds are called {}; expected NAME=DIR to tell them apart", build->name);
    }
  }
  if (reference.empty()) return {};
  const auto found = std::ranges::find(*builds, reference, &Build::name);
  if (found == builds->end()) return Fail("--reference {}: no such build", reference);
  std::rotate(builds->begin(), found, std::next(found));
  return {};
}

Result<Report> CompareBuilds(std::vector<Build> builds, const std::string& reference,
                             const std::set<std::string>& non_qat) {
  NIBBLE_RETURN_IF_ERROR(PutReferenceFirst(reference, &builds));
  const Build& first = builds.front();
  Report report{.reference = first.name};
  for (const Build& build : builds) {
    report.builds.push_back(FactsOf(build));
    if (const auto run = build.runs.find("long"); run != build.runs.end()) {
      report.heats.push_back(HeatOf(build.name, run->second));
    }
    if (&build == &first) continue;
    for (const auto& [suite, run] : first.runs) {
      if (!build.runs.contains(suite)) {
        report.builds.back().notes.push_back(fmt::format("{}: no run", suite));
        continue;
      }
      if (suite == kBench) {
        NIBBLE_ASSIGN_OR_RETURN(const auto speeds, CompareSpeeds(first, build));
        report.speeds.insert(report.speeds.end(), speeds.begin(), speeds.end());
      } else {
        NIBBLE_ASSIGN_OR_RETURN(Comparison comparison, CompareRuns(suite, first, build));
        report.comparisons.push_back(std::move(comparison));
      }
    }
  }
  for (const std::string& name : non_qat) {
    if (std::ranges::find(builds, name, &Build::name) == builds.end()) {
      return Fail("--non-qat {}: no such build", name);
    }
  }
  std::ranges::stable_sort(report.comparisons, {}, &Comparison::suite);
  report.claims = ClaimsOf(report.builds, non_qat);
  return report;
}

}  // namespace

Result<Build> ReadBuild(const std::string& argument) {
  const size_t equals = argument.find('=');
  const fs::path dir = equals == argument.npos ? argument : argument.substr(equals + 1);
  fs::path named = dir.has_filename() ? dir : dir.parent_path();
  std::error_code fault;
  const bool is_run = fs::exists(dir / kManifest, fault);
  // BUILD/SUITE is called BUILD.
  if (is_run && named.has_parent_path()) {
    NIBBLE_ASSIGN_OR_RETURN(const Json manifest, ReadJsonFile(dir / kManifest));
    const Json::json_pointer suite("/suite/name");
    if (manifest.contains(suite) && manifest.at(suite) == named.filename().string()) {
      named = named.parent_path();
    }
  }
  Build build{
      .name = equals == argument.npos ? named.filename().string() : argument.substr(0, equals),
      .runs = {}};
  if (is_run) {
    NIBBLE_RETURN_IF_ERROR(AddRun(dir, &build));
    return build;
  }
  std::vector<fs::path> runs;
  for (const auto& entry : fs::directory_iterator(dir, fault)) {
    std::error_code ignored;
    if (fs::exists(entry.path() / kManifest, ignored)) runs.push_back(entry.path());
  }
  if (fault) return Fail("{}: {}", dir.string(), fault.message());
  if (runs.empty())
    return Fail("{}: expected {}, or folders that hold one", dir.string(), kManifest);
  std::ranges::sort(runs);
  for (const fs::path& run : runs) NIBBLE_RETURN_IF_ERROR(AddRun(run, &build));
  return build;
}

Result<Report> Compare(std::vector<Build> builds, const std::string& reference,
                       const std::set<std::string>& non_qat) {
  try {
    return CompareBuilds(std::move(builds), reference, non_qat);
  } catch (const Json::exception& fault) {
    return Fail("a manifest, record or summary is not what eval and bench write: {}", fault.what());
  }
}

}  // namespace nibble::measure
