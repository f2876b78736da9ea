// Greedy answers token by token, for two targets that should say the same.
#include <fmt/format.h>

#include <memory>

#include "measure/exact_questions.h"
#include "measure/json_lines.h"
#include "measure/suite.h"

namespace nibble::measure {
namespace {

constexpr int kMaxIdentityTokens = 64;

Json TokensAndTops(const Item& item, const Reply& reply) {
  Json tokens = Json::array();
  Json tops = Json::array();
  for (const Step& step : reply.steps) {
    tokens.push_back(step.token);
    Json top = Json::array();
    for (const TokenLogprob& entry : step.top) {
      top.push_back(Json::array({entry.token, entry.logprob}));
    }
    tops.push_back(std::move(top));
  }
  return {{"prompt", item.query.messages[0].content},
          {"tokens", std::move(tokens)},
          {"top", std::move(tops)}};
}

}  // namespace

Result<Suite> IdentitySuite(const std::filesystem::path& data, int n) {
  Suite suite{.name = "identity", .settings = {{"max_tokens", kMaxIdentityTokens}}};
  std::vector<std::string> prompts;
  if (data.empty()) {
    for (const Question& question : MakeQuestions(kFortyQuestions, kFortySeed)) {
      prompts.push_back(question.prompt);
    }
  } else {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<Json> lines, ReadJsonLines(data));
    for (const Json& line : lines) {
      if (!line.is_object() || !line.value("prompt", Json()).is_string()) {
        return Fail("{}: record {}: expected \"prompt\" as text", data.string(),
                    prompts.size() + 1);
      }
      prompts.push_back(line["prompt"]);
    }
  }
  if (n > 0 && std::cmp_less(n, prompts.size())) prompts.resize(n);
  for (const std::string& prompt : prompts) {
    suite.items.push_back({.id = fmt::format("{}", suite.items.size()),
                           .query = {.messages = {{"user", prompt}},
                                     .max_tokens = kMaxIdentityTokens,
                                     .n_top_logprobs = 2}});
  }
  suite.judge = TokensAndTops;
  return suite;
}

}  // namespace nibble::measure
