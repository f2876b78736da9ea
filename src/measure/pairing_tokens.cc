// Pairs whose records hold tokens and their likelihoods: the suites `identity` and `kl`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "measure/pairing.h"

namespace nibble::measure {
namespace {

// Of a record's steps, the difference of the two best log-probabilities at `step`.
std::optional<double> MarginAt(const Json& record, size_t step) {
  if (!record.contains("top") || step >= record["top"].size()) return std::nullopt;
  const Json& top = record["top"][step];
  if (top.size() < 2) return std::nullopt;
  return top[0][1].get<double>() - top[1][1].get<double>();
}

// A record's tokens as text, without the one that ended the answer: some servers list it, some do
// not, and it has a text on some alone. All count it.
Json TextsOf(const Json& record) {
  Json tokens = record.value("tokens", Json::array());
  const bool ended = record.value("finish_reason", "") != "length";
  if (ended && !tokens.empty() && tokens.size() == record.value("completion_tokens", size_t{0})) {
    tokens.erase(tokens.size() - 1);
  }
  return tokens;
}

// The tokens of both sides in one spelling: ids where both have them, else text.
std::pair<Json, Json> TokensOf(const RecordPair& pair) {
  const auto& [reference, build] = pair;
  if (reference->contains("token_ids") && build->contains("token_ids")) {
    return {(*reference)["token_ids"], (*build)["token_ids"]};
  }
  return {TextsOf(*reference), TextsOf(*build)};
}

size_t FirstDifferentStep(const Json& a, const Json& b) {
  size_t step = 0;
  while (step < a.size() && step < b.size() && a[step] == b[step]) ++step;
  return step;
}

std::map<std::string, double> Probabilities(const Json& top) {
  std::map<std::string, double> probabilities;
  for (const Json& entry : top) {
    // Bytes of one character are different tokens with the same text.
    probabilities[entry[0].get<std::string>()] += std::exp(entry[1].get<double>());
  }
  return probabilities;
}

double Term(double p, double q) {
  constexpr double kLeast = 1e-12;  // what rounding leaves of a rest that is none
  return p <= 0 ? 0 : p * std::log(p / std::max(q, kLeast));
}

}  // namespace

double StepDivergence(const Json& reference_top, const Json& other_top) {
  const std::map<std::string, double> other = Probabilities(other_top);
  double divergence = 0;
  double rest = 1;
  double other_rest = 1;
  for (const auto& [token, p] : Probabilities(reference_top)) {
    const auto found = other.find(token);
    if (found == other.end()) continue;
    divergence += Term(p, found->second);
    rest -= p;
    other_rest -= found->second;
  }
  constexpr double kRounding = 1e-9;
  if (rest > kRounding) divergence += Term(rest, other_rest);
  return std::max(0.0, divergence);
}

void CompareTokens(std::span<const RecordPair> pairs, Comparison* comparison) {
  std::vector<double> parting_steps;
  std::vector<double> margins;
  std::vector<double> same;
  for (const RecordPair& pair : pairs) {
    const auto [a, b] = TokensOf(pair);
    same.push_back(a == b ? 1 : 0);
    if (a == b) continue;
    const size_t step = FirstDifferentStep(a, b);
    parting_steps.push_back(static_cast<double>(step));
    if (const auto margin = MarginAt(*pair.first, step)) margins.push_back(*margin);
    const auto show = [&](const Json& tokens) {
      return step < tokens.size() ? tokens[step].dump() : std::string("the end");
    };
    comparison->flips.push_back(
        {.id = pair.first->at("id"),
         .prompt = pair.first->value("prompt", ""),
         .expected = fmt::format("parts at token {}: {} against {}", step, show(a), show(b)),
         .reference_answer = pair.first->value("answer", ""),
         .answer = pair.second->value("answer", "")});
  }
  comparison->metrics.push_back({.name = "identical answers",
                                 .reference = {},
                                 .value = Mean(same),
                                 .difference = {},
                                 .interval = BootstrapMean(same),
                                 .is_share = true});
  if (parting_steps.empty()) {
    comparison->verdict = "token by token the same";
    return;
  }
  comparison->verdict = fmt::format("{} of {} answers part, at token {:g} in the median",
                                    parting_steps.size(), pairs.size(), Median(parting_steps));
  if (margins.empty()) return;
  comparison->metrics.push_back({.name = "reference's margin where they part, nats (median)",
                                 .reference = Median(margins),
                                 .value = {},
                                 .difference = {},
                                 .interval = {}});
}

void CompareDistributions(std::span<const RecordPair> pairs, Comparison* comparison) {
  std::vector<double> divergences;  // one a text
  double nll[2] = {};
  int64_t n_tokens = 0;
  int64_t n_untold = 0;
  int64_t n_same_best = 0;
  for (const auto& [a, b] : pairs) {
    if ((*a)["tokens"] != (*b)["tokens"]) {
      comparison->notes.push_back(
          fmt::format("record {}: the text became other tokens; left out", (*a)["id"].dump()));
      continue;
    }
    double sum = 0;
    for (size_t i = 0; i < (*a)["tokens"].size(); ++i) {
      sum += StepDivergence((*a)["top"][i], (*b)["top"][i]);
      n_same_best += (*a)["top"][i][0][0] == (*b)["top"][i][0][0] ? 1 : 0;
      ++n_tokens;
      const Json told[2] = {(*a)["logprobs"][i], (*b)["logprobs"][i]};
      if (told[0].is_null() || told[1].is_null()) {
        ++n_untold;
        continue;
      }
      nll[0] -= told[0].get<double>();
      nll[1] -= told[1].get<double>();
    }
    divergences.push_back(sum / static_cast<double>((*a)["tokens"].size()));
  }
  if (n_tokens == 0) return;
  const auto n_told = static_cast<double>(n_tokens - n_untold);
  if (n_untold > 0) {
    comparison->notes.push_back(
        fmt::format("perplexity leaves out {} of {} tokens, whose likelihood was not told by both",
                    n_untold, n_tokens));
  }
  const double before = std::exp(nll[0] / n_told);
  const double after = std::exp(nll[1] / n_told);
  comparison->metrics.push_back({.name = "perplexity",
                                 .reference = before,
                                 .value = after,
                                 .difference = after - before,
                                 .interval = {}});
  const double divergence = Mean(divergences);
  comparison->metrics.push_back({.name = "KL divergence from the reference, nats",
                                 .reference = {},
                                 .value = divergence,
                                 .difference = {},
                                 .interval = BootstrapMean(divergences)});
  comparison->metrics.push_back(
      {.name = "same best token",
       .reference = {},
       .value = static_cast<double>(n_same_best) / static_cast<double>(n_tokens),
       .difference = {},
       .interval = {},
       .is_share = true});
  comparison->verdict = fmt::format("KL divergence ({:.3g} nats a token)", divergence);
}

}  // namespace nibble::measure
