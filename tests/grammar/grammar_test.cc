// Masks against the text of every token, random answers, and the costs' bounds.
#include "grammar/grammar.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "grammar/machine.h"
#include "grammar/program.h"
#include "grammar/rule_masks.h"

namespace nibble::grammar {
namespace {

class GrammarTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto tokenizer = text::Tokenizer::Open(NIBBLE_SOURCE_DIR "/models/tiny");
    ASSERT_TRUE(tokenizer.has_value());
    for (int id = 0; id < tokenizer->vocab_size(); ++id) {
      if (tokenizer->Contains(id) && tokenizer->IsSpecial(id)) special_.insert(id);
    }
    vocabulary_ = std::make_shared<const Vocabulary>(*Vocabulary::Make(*tokenizer));
  }
  static void TearDownTestSuite() { vocabulary_.reset(); }

  static bool Has(const std::vector<uint64_t>& mask, int32_t id) {
    return (mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
  }

  // Writes an answer of random tokens and checks each mask on the way against running every token's
  // bytes. Short tokens come as often as long ones. "" if it does not end.
  static std::string WriteAnswer(const std::shared_ptr<const Grammar>& grammar, int seed) {
    std::mt19937 random(seed);
    const std::shared_ptr<TokenConstraint> constraint = Grammar::NewConstraint(grammar);
    Machine machine(grammar->program());
    StateId state = machine.Enter(grammar->program().rules[0], kEnd);
    std::vector<uint64_t> mask(vocabulary_->n_words());
    std::string answer;
    for (int n = 0; n < 400; ++n) {
      constraint->FillMask(mask);
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocabulary_->size(); ++id) {
        StateId end = vocabulary_->BytesOf(id).empty() ? kDead : state;
        for (const char c : vocabulary_->BytesOf(id)) {
          end = machine.Next(end, static_cast<uint8_t>(c));
        }
        EXPECT_EQ(Has(mask, id), end != kDead) << answer << " + " << vocabulary_->BytesOf(id);
        if (end != kDead) allowed.push_back(id);
        EXPECT_FALSE(special_.contains(id) && Has(mask, id));
      }
      EXPECT_EQ(constraint->is_complete(), machine.Contains(state, kEnd));
      if (constraint->is_complete() && (allowed.empty() || random() % 4 == 0)) return answer;
      if (allowed.empty()) {
        ADD_FAILURE() << "dead end behind " << answer;
        return "";
      }
      // A quote ends strings often enough.
      int32_t id = allowed[random() % allowed.size()];
      for (const int32_t other : allowed) {
        if (vocabulary_->BytesOf(other) == "\"" && random() % 4 == 0) id = other;
      }
      constraint->Accept(id);
      for (const char c : vocabulary_->BytesOf(id)) {
        state = machine.Next(state, static_cast<uint8_t>(c));
      }
      answer += vocabulary_->BytesOf(id);
    }
    return "";
  }

  static void ExpectAnswers(const Result<std::shared_ptr<const Grammar>>& grammar) {
    ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
    int n_ended = 0;
    for (int seed = 0; seed < 8; ++seed) {
      const std::string answer = WriteAnswer(*grammar, seed);
      if (answer.empty()) continue;
      EXPECT_TRUE((*grammar)->Accepts(answer)) << answer;
      ++n_ended;
    }
    EXPECT_GT(n_ended, 3);
  }

  static std::shared_ptr<const Vocabulary> vocabulary_;
  static std::set<int32_t> special_;
};

std::shared_ptr<const Vocabulary> GrammarTest::vocabulary_;
std::set<int32_t> GrammarTest::special_;

TEST_F(GrammarTest, MasksAreThoseOfEveryToken) {
  ExpectAnswers(Grammar::OfChoice({"yes", "yesterday", "no", "日本"}, vocabulary_));
  ExpectAnswers(Grammar::OfRegex("[a-f]{3,12}(, [a-z ]{0,20}){1,3}[.!]?", vocabulary_));
  ExpectAnswers(Grammar::OfRegex("(the|a|an) .{2,9}(x|y{5,})", vocabulary_));
  ExpectAnswers(Grammar::OfJsonSchema(
      R"({"type":"object","properties":{"name":{"type":"string","minLength":2,"maxLength":12},
          "n":{"type":"integer","minimum":-5,"maximum":1200},"kind":{"enum":["a","ab","abc"]},
          "list":{"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":5}},
          "required":["name","kind"]})",
      vocabulary_));
  ExpectAnswers(Grammar::OfJsonSchema(
      R"({"$defs":{"t":{"type":"object","properties":{"v":{"type":"string","pattern":"^[a-z]+$"},
          "c":{"type":"array","items":{"$ref":"#/$defs/t"},"maxItems":1}},"required":["v"]}},
          "$ref":"#/$defs/t"})",
      vocabulary_));
}

TEST_F(GrammarTest, AnyObject) {
  const auto grammar = Grammar::OfJsonObject(vocabulary_);
  ASSERT_TRUE(grammar.has_value());
  EXPECT_TRUE((*grammar)->Accepts(R"({"a": [1, 2.5e3, {"b": null}], "c": "x\"y"})"));
  EXPECT_TRUE((*grammar)->Accepts("{\n  \"a\": {},\n  \"b\": []\n}"));
  for (const char* text : {"[]", "1", "{\"a\"}", "{\"a\":1,}", "{} ", " {}", "{\"a\":\x01}"}) {
    EXPECT_FALSE((*grammar)->Accepts(text)) << text;
  }
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep += "{\"a\":";
  EXPECT_TRUE((*grammar)->Accepts(deep + "1" + std::string(1000, '}')));
  WriteAnswer(*grammar, 1);
}

// A constraint that has met many states starts its machine again, and goes on where it was.
TEST_F(GrammarTest, LongAnswersTakeBoundedMemory) {
  const auto grammar = Grammar::OfRegex("(a{0,9000}b){0,3}", vocabulary_);
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  const std::shared_ptr<TokenConstraint> constraint = Grammar::NewConstraint(*grammar);
  int32_t a = 0;
  int32_t b = 0;
  for (int32_t id = 0; id < vocabulary_->size(); ++id) {
    if (vocabulary_->BytesOf(id) == "a") a = id;
    if (vocabulary_->BytesOf(id) == "b") b = id;
  }
  std::vector<uint64_t> mask(vocabulary_->n_words());
  for (int part = 0; part < 3; ++part) {
    for (int i = 0; i < 8999; ++i) constraint->Accept(a);
    constraint->FillMask(mask);
    EXPECT_TRUE(Has(mask, a));
    constraint->Accept(a);
    constraint->FillMask(mask);
    EXPECT_FALSE(Has(mask, a));
    EXPECT_TRUE(Has(mask, b));
    constraint->Accept(b);
    EXPECT_TRUE(constraint->is_complete());
  }
  constraint->FillMask(mask);
  EXPECT_FALSE(Has(mask, a));
}

TEST_F(GrammarTest, ErrorsAreOneLine) {
  EXPECT_EQ(Grammar::OfChoice({}, vocabulary_).error().message, "choice: expected at least one");
  EXPECT_NE(Grammar::OfRegex("(", vocabulary_).error().message.find("regex: at character"),
            std::string::npos);
  EXPECT_NE(Grammar::OfRegex("(.{0,9999}){9}", vocabulary_).error().message.find("states"),
            std::string::npos);
}

// What is costly was worked out when the grammar was made: no mask of an answer takes a walk
// through a part of the vocabulary that is worth mentioning, and a second answer's take less.
TEST(Masks, OfAnAnswerTakeLittleWork) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  std::mt19937 random(1);
  for (int i = 0; i < 40'000; ++i) {
    std::string token = random() % 2 == 0 ? " " : "";
    for (size_t n = 1 + random() % 8; n > 0; --n) token += static_cast<char>('a' + random() % 26);
    tokens.push_back(std::move(token));
  }
  const auto vocabulary = std::make_shared<const Vocabulary>(Vocabulary::Make(tokens).value());
  const auto grammar = Grammar::OfJsonSchema(R"({"type":"object","properties":{
      "name":{"type":"string","minLength":1,"maxLength":40},"age":{"type":"integer","minimum":0},
      "tags":{"type":"array","items":{"type":"string","pattern":"^[a-z]{1,12}$"}},
      "about":{"type":"string"}},"required":["name","age","tags","about"]})",
                                             vocabulary)
                           .value();
  const std::string answer =
      R"({"name": "Ada Lovelace", "age": 36, "tags": ["poetry", "engines"], "about": "She wrote )"
      R"(the first program for a machine, and saw that it was good for more than numbers."})";
  const auto write = [&] {  // steps of the costliest mask, and of all
    const std::shared_ptr<TokenConstraint> constraint = Grammar::NewConstraint(grammar);
    std::vector<uint64_t> mask(vocabulary->n_words());
    int64_t most = 0;
    const int64_t n_before = grammar->n_mask_steps();
    for (const char c : answer) {
      const int64_t n_own_before = grammar->n_mask_steps();
      constraint->FillMask(mask);
      most = std::max(most, grammar->n_mask_steps() - n_own_before);
      constraint->Accept(static_cast<uint8_t>(c));
    }
    EXPECT_TRUE(constraint->is_complete());
    return std::pair(most, grammar->n_mask_steps() - n_before);
  };
  const auto n_tree_nodes = static_cast<int64_t>(vocabulary->tree().size());
  const auto [most, all] = write();
  EXPECT_LT(most, n_tree_nodes / 10);
  EXPECT_LT(write().second, all / 2);
}

// However a pattern is made, a mask takes bounded work: an answer, or none.
TEST_F(GrammarTest, HostilePatternsTakeBoundedWork) {
  for (const char* expression :
       {"(.*a.{0,400}){2}b", "(.|..|...|....)*(.{0,100}x.{0,100}y)*z", "((a|b)*a(a|b){200})*",
        "(((.*.*)*.*)*.*)*x", "(a?){300}a{300}", "(.*){30}q"}) {
    const auto grammar = Grammar::OfRegex(expression, vocabulary_);
    if (grammar.has_value()) {
      const std::shared_ptr<TokenConstraint> constraint = Grammar::NewConstraint(*grammar);
      std::vector<uint64_t> mask(vocabulary_->n_words());
      std::mt19937 random(1);
      for (int n = 0; n < 10; ++n) {
        const int64_t n_before = (*grammar)->n_mask_steps();
        constraint->FillMask(mask);
        EXPECT_LT((*grammar)->n_mask_steps() - n_before, 2 * kMaxWork) << expression;
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < vocabulary_->size(); ++id) {
          if (Has(mask, id)) allowed.push_back(id);
        }
        if (allowed.empty()) break;
        constraint->Accept(allowed[random() % allowed.size()]);
      }
    }
  }
}

}  // namespace
}  // namespace nibble::grammar
