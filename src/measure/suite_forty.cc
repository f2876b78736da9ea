// The exact questions as a suite.
#include <fmt/format.h>

#include "measure/exact_questions.h"
#include "measure/suite.h"

namespace nibble::measure {

Suite FortySuite(int n, uint64_t seed) {
  constexpr int kMaxAnswerTokens = 64;
  Suite suite{.name = "forty", .settings = {{"n", n}, {"seed", seed}}};
  const auto questions = std::make_shared<const std::vector<Question>>(MakeQuestions(n, seed));
  for (const Question& question : *questions) {
    suite.items.push_back(
        {.id = fmt::format("{}", question.id),
         .kind = std::string(Name(question.kind)),
         .query = {.messages = {{"user", question.prompt}}, .max_tokens = kMaxAnswerTokens},
         .gold = question.expected});
  }
  suite.judge = [questions](const Item& item, const Reply& reply) {
    const Question& question = (*questions)[std::stoul(item.id)];
    return Json{{"prompt", question.prompt},
                {"expected", question.expected},
                {"score", IsCorrect(question, reply.text) ? 1 : 0}};
  };
  return suite;
}

}  // namespace nibble::measure
