// A sentence to be found again, at every depth of texts of every length.
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "measure/python_random.h"
#include "measure/suite.h"

namespace nibble::measure {
namespace {

constexpr int kMaxNeedleTokens = 32;
constexpr const char* kQuestion =
    "\n\nWhat is the secret number in the text above? Answer with the number alone.";

// Sentences about nothing, never the same twice in a row.
std::string Filler(PythonRandom* random) {
  static constexpr const char* kSubjects[] = {"The river",     "A farmer", "The old clock",
                                              "Her sister",    "A train",  "The lake",
                                              "Our neighbour", "The wind"};
  static constexpr const char* kVerbs[] = {"passes", "remembers", "follows", "leaves",
                                           "meets",  "hears",     "needs",   "warms"};
  static constexpr const char* kObjects[] = {"the village", "a letter",   "the stone bridge",
                                             "an apple",    "the garden", "a quiet song",
                                             "the harbour", "some bread"};
  return fmt::format("{} {} {}. ", kSubjects[random->RandBelow(std::size(kSubjects))],
                     kVerbs[random->RandBelow(std::size(kVerbs))],
                     kObjects[random->RandBelow(std::size(kObjects))]);
}

std::string TextWithNeedle(size_t n_bytes, int64_t depth_percent, const std::string& needle,
                           PythonRandom* random) {
  std::string text;
  bool is_placed = false;
  while (text.size() < n_bytes || !is_placed) {
    if (!is_placed && text.size() * 100 >= n_bytes * static_cast<size_t>(depth_percent)) {
      text += needle;
      is_placed = true;
    }
    text += Filler(random);
  }
  return text;
}

// How many bytes of filler make a token, by the target's own count.
Result<double> BytesPerToken(Target& target) {
  constexpr int kSentences = 40;
  PythonRandom random(1);
  std::string text;
  for (int i = 0; i < kSentences; ++i) text += Filler(&random);
  NIBBLE_ASSIGN_OR_RETURN(const Reply reply, target.Ask({.text = text, .max_tokens = 1}));
  if (reply.n_prompt_tokens == 0) return Fail("the target counts no tokens (usage)");
  return static_cast<double>(text.size()) / static_cast<double>(reply.n_prompt_tokens);
}

}  // namespace

Result<Suite> LongSuite(Target& target, const std::vector<int>& lengths,
                        const std::vector<int>& depths, int n) {
  constexpr int kRoomTokens = 96;  // for the needle, the question and the chat's marks
  NIBBLE_ASSIGN_OR_RETURN(const double bytes_per_token, BytesPerToken(target));
  // Rounded, so that builds with one tokenizer are asked the same.
  const double rounded = std::round(bytes_per_token * 100) / 100;
  Suite suite{.name = "long",
              .settings = {{"lengths", lengths}, {"depths", depths}, {"bytes_per_token", rounded}}};
  for (const int length : lengths) {
    for (const int depth : depths) {
      for (int i = 0; i < n; ++i) {
        PythonRandom random(suite.items.size() + 1);
        const int secret = random.RandInt(1000, 9999);
        const auto n_bytes =
            static_cast<size_t>(std::max(1, length - kRoomTokens) * bytes_per_token);
        const std::string prompt =
            TextWithNeedle(n_bytes, depth, fmt::format("The secret number is {}. ", secret),
                           &random) +
            kQuestion;
        suite.items.push_back(
            {.id = fmt::format("{}/{}/{}", length, depth, i),
             .kind = fmt::format("{}/{}", length, depth),
             .query = {.messages = {{"user", prompt}}, .max_tokens = kMaxNeedleTokens},
             .gold = secret});
      }
    }
  }
  suite.judge = [](const Item& item, const Reply& reply) {
    const std::string expected = item.gold.dump();
    return Json{{"expected", expected}, {"score", reply.text.contains(expected) ? 1 : 0}};
  };
  return suite;
}

}  // namespace nibble::measure
