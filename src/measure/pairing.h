// The records of two runs of one suite, paired by id. Tested by compare_test.cc.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "measure/compare.h"

namespace nibble::measure {

// Records of the same item: the reference's first.
using RecordPair = std::pair<const Json*, const Json*>;

// In the reference's order. Error: ids that only one has, the first of them named, or an item whose
// prompts differ.
Result<std::vector<RecordPair>> PairRecords(const std::vector<Json>& reference,
                                            const std::vector<Json>& build);

// Fills what all scored suites have: accuracy, flips, kinds, identical answers, notes.
void CompareScores(std::span<const RecordPair> pairs, Comparison* comparison);
// Expected calibration error and Brier score, where records hold probabilities.
void CompareForecasts(std::span<const RecordPair> pairs, Comparison* comparison);
// Token by token: how many answers are the same, and where the others part.
void CompareTokens(std::span<const RecordPair> pairs, Comparison* comparison);
// Perplexity, divergence and agreement of next-token distributions.
void CompareDistributions(std::span<const RecordPair> pairs, Comparison* comparison);

// KL(reference || other) of one step over the tokens that both report, all others as one outcome:
// never above the divergence of the whole distributions. Each: [[token, log-probability], ...].
double StepDivergence(const Json& reference_top, const Json& other_top);

}  // namespace nibble::measure
