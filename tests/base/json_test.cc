#include "base/json.h"

#include <gtest/gtest.h>

#include <string>

namespace nibble {
namespace {

std::string ErrorOf(const std::string& text) {
  const auto json = ParseJson(text, "x.json");
  return json.has_value() ? "no error" : json.error().message;
}

TEST(JsonTest, BuildsWhatTheLibraryItselfBuilds) {
  for (const char* text :
       {"null", "true", "-7", "18446744073709551615", "1.5e-3", R"("\u00e9\n")", "[]", "{}",
        R"([1,[2,[],{}],{"a":null}])", R"({"b":{"c":[false,{"d":"e"}]},"a":[[1],[2]],"":0})",
        R"( {"a" : {"a" : {"a" : 1}}, "b": {"a": 2}} )"}) {
    const auto json = ParseJson(text, "x.json");
    ASSERT_TRUE(json.has_value()) << json.error().message;
    EXPECT_EQ(*json, Json::parse(text)) << text;
  }
}

TEST(JsonTest, RefusesWhatOthersResolveSilently) {
  const struct {
    std::string text;
    const char* message;
  } kCases[] = {
      {R"({"a":1,"a":1})", "x.json: bad JSON: duplicate key \"a\""},
      {R"({"a":1,"\u0061":2})", "duplicate key \"a\""},
      {R"([{"b":{"a":1,"c":{"a":1},"a":2}}])", "duplicate key \"a\""},
      {"{\"a\\nb\":1,\"a\\nb\":1}", "duplicate key \"a\\nb\""},
      {std::string(65, '['), "nested deeper than 64"},
      {"", "bad JSON"},
      {"{} x", "bad JSON"},
      {"[1,]", "bad JSON"},
      {"NaN", "bad JSON"},
      {"1e999", "bad JSON"},
      {"\"\xc3\"", "bad JSON"},
      {"// c\n1", "bad JSON"},
  };
  for (const auto& [text, message] : kCases) {
    const std::string error = ErrorOf(text);
    EXPECT_NE(error.find(message), std::string::npos) << text << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_TRUE(ParseJson(std::string(64, '[') + std::string(64, ']'), "x.json").has_value());
}

TEST(JsonTest, MessagesStayShort) {
  EXPECT_LT(ErrorOf("\"" + std::string(1'000'000, 'a')).size(), 300u);
  const std::string key(1'000'000, 'k');
  EXPECT_LT(ErrorOf("{\"" + key + "\":1,\"" + key + "\":1}").size(), 300u);
}

TEST(JsonTest, QuoteForMessage) {
  EXPECT_EQ(QuoteForMessage("plain"), "\"plain\"");
  EXPECT_EQ(QuoteForMessage("a\"\n\x1b"), R"("a\"\n\u001b")");
  EXPECT_EQ(QuoteForMessage("\xff"), "\"\xef\xbf\xbd\"");
  EXPECT_EQ(QuoteForMessage(std::string(121, 'x')),
            fmt::format("\"{}...\"", std::string(120, 'x')));
}

TEST(JsonTest, FileErrorsNameTheFile) {
  const auto json = ReadJsonFile("/nonexistent/x.json");
  ASSERT_FALSE(json.has_value());
  EXPECT_EQ(json.error().message.rfind("/nonexistent/x.json: cannot open", 0), 0u);
}

}  // namespace
}  // namespace nibble
