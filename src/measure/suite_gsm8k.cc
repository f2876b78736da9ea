// GSM8K: problems for school children, answered step by step. Source of the data: OpenAI's
// grade-school-math, {"question", "answer": "... #### NUMBER"} a line.
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "base/ascii.h"
#include "measure/gsm8k.h"
#include "measure/json_lines.h"
#include "measure/suite.h"

namespace nibble::measure {
namespace {

// The number that begins with the digit at `at`, and where it ends.
double NumberAt(std::string_view text, size_t at, size_t* end) {
  std::string digits;
  bool has_point = false;
  size_t i = at;
  for (; i < text.size(); ++i) {
    const bool digit_follows = i + 1 < text.size() && IsAsciiDigit(text[i + 1]);
    if (IsAsciiDigit(text[i])) {
      digits += text[i];
    } else if (text[i] == '.' && !has_point && digit_follows) {
      digits += '.';
      has_point = true;
    } else if (text[i] != ',' || has_point || !digit_follows) {
      break;
    }
  }
  *end = i;
  const size_t before = at > 0 && text[at - 1] == '$' ? at - 1 : at;
  const bool is_negative =
      before > 0 && text[before - 1] == '-' && (before == 1 || !IsAsciiDigit(text[before - 2]));
  const double value = std::strtod(digits.c_str(), nullptr);
  return is_negative ? -value : value;
}

std::optional<double> FindNumber(std::string_view text, bool last) {
  std::optional<double> found;
  for (size_t at = 0; at < text.size();) {
    if (!IsAsciiDigit(text[at])) {
      ++at;
      continue;
    }
    found = NumberAt(text, at, &at);
    if (!last) return found;
  }
  return found;
}

}  // namespace

std::optional<double> FinalNumber(std::string_view text) {
  constexpr std::string_view kMark = "Answer:";
  const size_t mark = text.rfind(kMark);
  if (mark != text.npos) {
    const auto number = FindNumber(text.substr(mark + kMark.size()), /*last=*/false);
    if (number.has_value()) return number;
  }
  return FindNumber(text, /*last=*/true);
}

Result<Suite> Gsm8kSuite(const std::filesystem::path& data, int n) {
  constexpr int kMaxAnswerTokens = 2048;
  constexpr double kTolerance = 1e-6;
  constexpr std::string_view kGoldMark = "####";
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Json> lines, ReadJsonLines(data));
  Suite suite{.name = "gsm8k", .settings = {{"max_tokens", kMaxAnswerTokens}}};
  for (const Json& line : lines) {
    if (n > 0 && std::cmp_equal(suite.items.size(), n)) break;
    const auto where = fmt::format("{}: record {}", data.string(), suite.items.size() + 1);
    if (!line.is_object() || !line.value("question", Json()).is_string() ||
        !line.value("answer", Json()).is_string()) {
      return Fail("{}: expected \"question\" and \"answer\" as text", where);
    }
    const std::string answer = line["answer"];
    const size_t mark = answer.rfind(kGoldMark);
    const auto gold = mark == answer.npos
                          ? std::nullopt
                          : FindNumber(std::string_view(answer).substr(mark), /*last=*/true);
    if (!gold.has_value()) return Fail("{}: \"answer\" ends in no #### NUMBER", where);
    const std::string prompt = line["question"].get<std::string>() +
                               "\n\nThink step by step. End with one line of this form: Answer: N";
    suite.items.push_back(
        {.id = fmt::format("{}", suite.items.size()),
         .query = {.messages = {{"user", prompt}}, .max_tokens = kMaxAnswerTokens},
         .gold = *gold});
  }
  suite.judge = [](const Item& item, const Reply& reply) {
    const std::optional<double> number = FinalNumber(reply.text);
    const double gold = item.gold;
    const bool is_right = number.has_value() && std::abs(*number - gold) <= kTolerance;
    return Json{{"prompt", item.query.messages[0].content},
                {"expected", gold},
                {"number", number.has_value() ? Json(*number) : Json()},
                {"score", is_right ? 1 : 0}};
  };
  return suite;
}

}  // namespace nibble::measure
