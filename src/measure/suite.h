// A suite: what is asked, and how an answer is judged. One .cc per suite; each gives what a run
// needs and nothing else, so that runs and comparisons know no suite by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "measure/choice.h"
#include "measure/target.h"

namespace nibble::measure {

struct Item {
  std::string id = {};    // unique in its suite
  std::string kind = {};  // what scores are also counted by: "product", a subset's name; may be ""
  Query query = {};
  Json gold = {};  // what the judge needs; part of the suite's hash
};

struct Suite {
  std::string name = {};
  Json settings = Json::object();  // beside the items, what two runs must share
  std::vector<Item> items = {};
  // The record's own keys: "score" (0 to 1) where the suite scores, and whatever tells why.
  std::function<Json(const Item&, const Reply&)> judge = {};
};

// SHA-256 of all ids, queries and gold answers: two runs with the same hash were asked the same.
std::string HashOf(const Suite& suite);
// SHA-256 of what one query asks.
std::string HashOf(const Query& query);

// What a record says of every suite: id, kind, prompt_sha256, the first prompt ids where the
// target tells them and how often <bos> is among all of them, answer, finish_reason, token counts,
// time_s; and what the judge adds.
Json MakeRecord(const Suite& suite, const Item& item, const Reply& reply);

// {"suite", "n", and where records are scored "correct", "accuracy", "interval", "kinds": {kind:
// {"correct", "total"}}, "flags"; "prompt_tokens", "completion_tokens", "bos_count"}
Json Summarize(std::string_view suite_name, std::span<const Json> records);

// n: at most so many items; 0: all that there are. Errors name file and record.

// The exact questions (exact_questions.h).
Suite FortySuite(int n, uint64_t seed);
Result<Suite> Gsm8kSuite(const std::filesystem::path& data, int n);
// dir: holds BFCL_v4_simple_python.json and possible_answer/, as the package bfcl-eval does.
Result<Suite> BfclSuite(const std::filesystem::path& dir, int n);
Result<Suite> ChoiceSuite(const ChoiceOptions& options, int n);
// n needles at each length (tokens) and depth (percent); asks the target once what a token is.
Result<Suite> LongSuite(Target& target, const std::vector<int>& lengths,
                        const std::vector<int>& depths, int n);
// data: JSONL with "prompt"; "": the forty questions.
Result<Suite> IdentitySuite(const std::filesystem::path& data, int n);
Result<Suite> KlSuite(const std::filesystem::path& text_file, int n, int n_top_logprobs);

}  // namespace nibble::measure
