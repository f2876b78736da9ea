// The exact questions: products of two two-digit numbers, a + b - c with three digits, capitals;
// which ones, and what counts as right.
//
// The forty are those of the published articles (random.Random(20260925)); any other number draws
// the same kinds in the same proportion, capitals from the whole list. The wordings are those that
// the tiny model knows. Tested by exact_questions_test.cc against draws made with Python.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::measure {

inline constexpr int kFortyQuestions = 40;
inline constexpr uint64_t kFortySeed = 20260925;
// What other numbers of questions are drawn with unless a seed is given; the tiny model's card
// reports 1,000 questions of this seed.
inline constexpr uint64_t kWiderSeed = 1;

enum class Kind { kProduct, kSum, kCapital };
inline constexpr Kind kKinds[] = {Kind::kProduct, Kind::kSum, Kind::kCapital};
std::string_view Name(Kind kind);

struct Question {
  int id = 0;  // from 0
  Kind kind = Kind::kProduct;
  std::string prompt;
  std::string expected;
};

// 15 : 15 : 10 of the kinds, in this order.
std::vector<Question> MakeQuestions(int n, uint64_t seed);

// A product: stands in the answer bounded by word boundaries. A sum: likewise, and not after a
// digit or a minus sign. A city: stands in the answer in any case, Brasilia with i or í.
bool IsCorrect(const Question& question, std::string_view answer);

}  // namespace nibble::measure
