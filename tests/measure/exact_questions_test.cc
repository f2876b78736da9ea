// The questions against draws made with Python, the list of capitals against its file, and what
// counts as right.
#include "measure/exact_questions.h"

#include <gtest/gtest.h>

#include "base/mapped_file.h"
#include "measure/capitals.h"

namespace nibble::measure {
namespace {

void ExpectQuestion(const Question& question, Kind kind, std::string_view prompt,
                    std::string_view expected) {
  EXPECT_EQ(question.kind, kind);
  EXPECT_EQ(question.prompt, prompt);
  EXPECT_EQ(question.expected, expected);
}

TEST(MakeQuestions, GivesThePublishedForty) {
  const std::vector<Question> questions = MakeQuestions(40, kFortySeed);
  ASSERT_EQ(questions.size(), 40u);
  ExpectQuestion(questions[0], Kind::kProduct, "What is 54*28?", "1512");
  ExpectQuestion(questions[14], Kind::kProduct, "What is 36*76?", "2736");
  ExpectQuestion(questions[15], Kind::kSum, "What is 360+875-688?", "547");
  ExpectQuestion(questions[29], Kind::kSum, "What is 150+937-139?", "948");
  ExpectQuestion(questions[30], Kind::kCapital, "What is the capital of Australia?", "Canberra");
  ExpectQuestion(questions[39], Kind::kCapital, "What is the capital of Vietnam?", "Hanoi");
  for (int i = 0; i < 40; ++i) EXPECT_EQ(questions[i].id, i);
}

TEST(MakeQuestions, DrawsAThousandInTheSameProportion) {
  const std::vector<Question> questions = MakeQuestions(1000, kWiderSeed);
  ASSERT_EQ(questions.size(), 1000u);
  ExpectQuestion(questions[0], Kind::kProduct, "What is 29*84?", "2436");
  ExpectQuestion(questions[374], Kind::kProduct, "What is 64*99?", "6336");
  ExpectQuestion(questions[375], Kind::kSum, "What is 657+410-255?", "812");
  ExpectQuestion(questions[749], Kind::kSum, "What is 492+746-953?", "285");
  ExpectQuestion(questions[750], Kind::kCapital, "What is the capital of Finland?", "Helsinki");
  ExpectQuestion(questions[999], Kind::kCapital, "What is the capital of Mozambique?", "Maputo");
}

TEST(Capitals, AreThoseOfTheFile) {
  const auto file = ReadTextFile(NIBBLE_SOURCE_DIR "/tools/capitals.tsv");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  std::string ours;
  for (const Capital& capital : Capitals()) {
    ours += std::string(capital.country) + "\t" + std::string(capital.city) + "\n";
  }
  EXPECT_EQ(ours, *file);
}

TEST(IsCorrect, WantsAProductBetweenWordBoundaries) {
  const Question question{.kind = Kind::kProduct, .prompt = "", .expected = "1512"};
  for (const char* right : {"1512", "It is 1512.", "54*28=1512", "-1512", "15 1512"}) {
    EXPECT_TRUE(IsCorrect(question, right)) << right;
  }
  for (const char* wrong : {"", "15120", "11512", "1 512", "1,512", "x1512", "1512a", "_1512"}) {
    EXPECT_FALSE(IsCorrect(question, wrong)) << wrong;
  }
}

TEST(IsCorrect, WantsASumNotAfterADigitOrAMinus) {
  const Question question{.kind = Kind::kSum, .prompt = "", .expected = "547"};
  for (const char* right : {"547", "= 547", "=547.", "1547 or 547"}) {
    EXPECT_TRUE(IsCorrect(question, right)) << right;
  }
  for (const char* wrong : {"-547", "1547", "5470", "546"}) {
    EXPECT_FALSE(IsCorrect(question, wrong)) << wrong;
  }
  const Question negative{.kind = Kind::kSum, .prompt = "", .expected = "-12"};
  EXPECT_TRUE(IsCorrect(negative, "-12"));
  EXPECT_FALSE(IsCorrect(negative, "12"));
  EXPECT_FALSE(IsCorrect(negative, "-120"));
}

TEST(IsCorrect, TakesACityInAnyCase) {
  const Question question{.kind = Kind::kCapital, .prompt = "", .expected = "Wellington"};
  EXPECT_TRUE(IsCorrect(question, "It is WELLINGTON."));
  EXPECT_FALSE(IsCorrect(question, "Auckland"));
  const Question brasilia{.kind = Kind::kCapital, .prompt = "", .expected = "Brasilia"};
  EXPECT_TRUE(IsCorrect(brasilia, "brasilia"));
  EXPECT_TRUE(IsCorrect(brasilia, "Brasília"));
  EXPECT_FALSE(IsCorrect(brasilia, "Brazil"));
}

}  // namespace
}  // namespace nibble::measure
