// What expressions match, and which are refused. Samples against Python's re: test_grammar.py.
#include "grammar/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/machine.h"

namespace nibble::grammar {
namespace {

Result<Program> Compile(std::string_view expression) {
  ProgramBuilder builder;
  const RuleId whole = builder.NewRule();
  NIBBLE_ASSIGN_OR_RETURN(const NodeId end, AddRegex(builder, builder.start(whole), expression,
                                                     Matching::kWhole, Spelling::kPlain));
  builder.Finish(end);
  return std::move(builder).Build();
}

bool Matches(std::string_view expression, std::string_view text) {
  const auto program = Compile(expression);
  if (!program.has_value()) {
    ADD_FAILURE() << expression << ": " << program.error().message;
    return false;
  }
  Machine machine(*program);
  StateId state = machine.Enter(program->rules[0], kEnd);
  for (const char c : text) state = machine.Next(state, static_cast<uint8_t>(c));
  return machine.Contains(state, kEnd);
}

struct Case {
  const char* expression;
  std::vector<const char*> matching;
  std::vector<const char*> others;
};

TEST(Regex, MatchesTheWholeText) {
  const Case cases[] = {
      {"", {""}, {"a"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"^(?:ab)+$", {"ab", "abab"}, {"", "aba"}},
      {"(?P<x>a)(?<y>b)", {"ab"}, {"a"}},
      {"a{2,3}b{2}c{1,}", {"aabbc", "aaabbccc"}, {"abbc", "aaaabbc", "aabc", "aabb"}},
      {"(a{0,2}b){2}", {"bb", "aabab"}, {"b", "aaabb"}},
      {"a*?b+?c??", {"b", "aabbc"}, {"", "ac"}},
      {"[a-c\\-x]+", {"ab-x"}, {"d", ""}},
      {"[^a-z]", {"A", "é", "🙂"}, {"a", "AB"}},
      {"[]a]+", {"]a"}, {"b"}},
      {"[-a]", {"-", "a"}, {"b"}},
      {"\\d+\\.\\w\\s\\D\\W\\S", {"12.a x !"}, {"12.a xx!"}},
      {".", {"a", "é", "日", "🙂"}, {"\n", "", "ab", "\xc3"}},
      {"[à-ü߀-\\uFFFD]", {"é", "日", "\xef\xbf\xbd"}, {"a", "ÿ"}},
      {"\\x41\\u00e9\\n\\t\\/\\$", {"Aé\n\t/$"}, {"A"}},
      {"(|a)*b", {"b", "aab"}, {"a"}},
      {"((a*)*)*b", {"b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaab"}, {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}},
  };
  for (const Case& c : cases) {
    for (const char* text : c.matching)
      EXPECT_TRUE(Matches(c.expression, text)) << c.expression << " " << text;
    for (const char* text : c.others)
      EXPECT_FALSE(Matches(c.expression, text)) << c.expression << " " << text;
  }
}

TEST(Regex, EveryCharacterHasItsBytes) {
  // All of two-, three- and four-byte ends, one by one.
  for (const auto& [expression, text] :
       std::vector<std::pair<std::string, std::string>>{{"[\\u0080-\\u07ff]", "\xdf\xbf"},
                                                        {"[\\u0800-\\uffff]", "\xe0\xa0\x80"},
                                                        {"[\\u0100-\\uffff]", "\xed\x9f\xbf"},
                                                        {"[\\u0100-\\uffff]", "\xee\x80\x80"},
                                                        {"[^a]", "\xf4\x8f\xbf\xbf"},
                                                        {"[^a]", "\xf0\x90\x80\x80"}}) {
    EXPECT_TRUE(Matches(expression, text)) << expression;
  }
  for (const char* text :
       {"\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\xe0\x9f\xbf", "\xff"}) {
    EXPECT_FALSE(Matches("[^a]", text));  // no UTF-8
  }
}

TEST(Regex, RefusesByNameAndPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"(a", "character 3 of the expression: a group without its ')'"},
      {"a)", "unmatched"},
      {"[a", "'['"},
      {"*a", "nothing to repeat"},
      {"a**", "quantifier"},
      {"a{3,2}", "n below m"},
      {"a{x}", "number"},
      {"a{999999}", "repetitions"},
      {"(?=a)", "look-around"},
      {"(?<!a)b", "look-around"},
      {"(?i)a", "flags"},
      {"(a)\\1", "escape"},
      {"\\bword", "escape"},
      {"\\p{L}", "escape"},
      {"(a$)b", "$"},
      {"[z-a]", "range"},
      {"\\ud800", "surrogate"},
      {"\\", "nothing behind"},
      {"\\xg1", "hexadecimal"},
  };
  for (const auto& [expression, part] : cases) {
    const auto program = Compile(expression);
    ASSERT_FALSE(program.has_value()) << expression;
    EXPECT_NE(program.error().message.find(part), std::string::npos) << program.error().message;
  }
}

}  // namespace
}  // namespace nibble::grammar
