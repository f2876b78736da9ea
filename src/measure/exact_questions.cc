#include "measure/exact_questions.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ascii.h"
#include "base/check.h"
#include "measure/capitals.h"
#include "measure/python_random.h"

namespace nibble::measure {
namespace {

// The published ten.
constexpr Capital kFortyCapitals[] = {
    {"Australia", "Canberra"}, {"Canada", "Ottawa"},          {"Brazil", "Brasilia"},
    {"Turkey", "Ankara"},      {"Nigeria", "Abuja"},          {"Switzerland", "Bern"},
    {"Pakistan", "Islamabad"}, {"New Zealand", "Wellington"}, {"Morocco", "Rabat"},
    {"Vietnam", "Hanoi"},
};

bool IsWord(char c) {
  return IsAsciiDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

std::string LowerAscii(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// Whether `number` stands in `answer` where may_follow(character before, if any) holds and no word
// character comes after.
template <typename MayFollow>
bool HasNumber(std::string_view answer, std::string_view number, MayFollow may_follow) {
  for (size_t at = answer.find(number); at != answer.npos; at = answer.find(number, at + 1)) {
    const size_t end = at + number.size();
    if ((at == 0 || may_follow(answer[at - 1])) && (end == answer.size() || !IsWord(answer[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string_view Name(Kind kind) {
  switch (kind) {
    case Kind::kProduct:
      return "product";
    case Kind::kSum:
      return "sum";
    case Kind::kCapital:
      return "capital";
  }
  CHECK(false);
}

std::vector<Question> MakeQuestions(int n, uint64_t seed) {
  PythonRandom random(seed);
  std::vector<Question> questions;
  const auto add = [&](Kind kind, std::string prompt, std::string expected) {
    questions.push_back({.id = static_cast<int>(questions.size()),
                         .kind = kind,
                         .prompt = std::move(prompt),
                         .expected = std::move(expected)});
  };
  const int n_numeric = n * 15 / kFortyQuestions;  // of each kind
  for (int i = 0; i < n_numeric; ++i) {
    const int a = random.RandInt(12, 99);
    const int b = random.RandInt(12, 99);
    add(Kind::kProduct, fmt::format("What is {}*{}?", a, b), fmt::format("{}", a * b));
  }
  for (int i = 0; i < n_numeric; ++i) {
    const int a = random.RandInt(100, 999);
    const int b = random.RandInt(100, 999);
    const int c = random.RandInt(100, 999);
    add(Kind::kSum, fmt::format("What is {}+{}-{}?", a, b, c), fmt::format("{}", a + b - c));
  }
  const std::span<const Capital> all = Capitals();
  for (int i = 0; static_cast<int>(questions.size()) < n; ++i) {
    const Capital& capital = n == kFortyQuestions
                                 ? kFortyCapitals[i]
                                 : all[random.RandBelow(static_cast<uint32_t>(all.size()))];
    add(Kind::kCapital, fmt::format("What is the capital of {}?", capital.country),
        std::string(capital.city));
  }
  return questions;
}

bool IsCorrect(const Question& question, std::string_view answer) {
  switch (question.kind) {
    case Kind::kProduct:
      return HasNumber(answer, question.expected, [](char before) { return !IsWord(before); });
    case Kind::kSum:
      return HasNumber(answer, question.expected,
                       [](char before) { return !IsAsciiDigit(before) && before != '-'; });
    case Kind::kCapital: {
      const std::string lower = LowerAscii(answer);
      if (lower.contains(LowerAscii(question.expected))) return true;
      return question.expected == "Brasilia" && lower.contains("brasília");
    }
  }
  CHECK(false);
}

}  // namespace nibble::measure
