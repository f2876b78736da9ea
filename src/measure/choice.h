// Choice records: a prompt, its labels, the right one. Tested by suites_test.cc.
//
// A set is JSONL: {"prompt": text, "labels": [text, ...], "gold": label or its number from 0,
// "subset"?: text, "id"?: text} a line; other names of columns, labels that all records share and
// prompts made from several columns are options, so that a Hugging Face export works as it is.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "measure/target.h"

namespace nibble::measure {

struct ChoiceOptions {
  std::filesystem::path data = {};          // "": the exact questions, with four answers each
  std::string prompt_pattern = "{prompt}";  // {column} stands for that column's text
  std::vector<std::string> labels = {};     // of all records; empty: in a column
  std::string labels_column = "labels";
  std::string gold_column = "gold";
  std::string kind_column = "subset";
  std::string answer_lead = {};
  int n_top_logprobs = 20;  // the most that OpenAI's API and vLLM give by default
};

struct LabelScores {
  std::vector<double> probabilities;  // over the labels, they sum to 1
  int n_returned = 0;                 // labels that were among the likely tokens
};

// The mass of the tokens that are a label, or that begin it and no other; a label without any
// counts as the smallest log-probability minus 5.
LabelScores ScoreLabels(const std::vector<std::string>& labels,
                        const std::vector<TokenLogprob>& top);

}  // namespace nibble::measure
