// What the grammar of calls writes, against the reader of calls and the chat format's own spelling.
#include "grammar/tool_calls.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/grammar.h"
#include "grammar/vocabulary.h"
#include "text/chat_value.h"
#include "text/tokenizer.h"
#include "text/tool_call.h"

namespace nibble::grammar {
namespace {

std::shared_ptr<const Vocabulary> Tiny() {
  static const auto vocabulary = std::make_shared<const Vocabulary>(
      Vocabulary::Make(text::Tokenizer::Open(NIBBLE_SOURCE_DIR "/models/tiny").value()).value());
  return vocabulary;
}

Result<std::shared_ptr<const Grammar>> OneTool(const std::string& parameters) {
  return Grammar::OfToolCalls(fmt::format(R"([{{"name":"f","parameters":{}}}])", parameters), false,
                              Tiny());
}

std::string Marked(std::string text) {
  const auto replace = [&](std::string_view mark, uint8_t byte) {
    for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos;) {
      text.replace(at, mark.size(), 1, static_cast<char>(byte));
    }
  };
  replace(text::kQuote, kQuoteMark);
  return fmt::format("{}call:f{}{}", static_cast<char>(kCallBeginMark), text,
                     static_cast<char>(kCallEndMark));
}

// Arguments as the chat format writes them are allowed, and nothing but what is listed.
TEST(ToolCalls, ArgumentsBySchema) {
  struct SchemaCase {
    std::string schema;
    std::vector<std::string> valid;  // as JSON
    std::vector<std::string> invalid;
  };
  const std::vector<SchemaCase> cases = {
      {R"({"type":"string"})", {R"("")", R"("a \"b\" {c}, [d]\n\\")", R"("é")"}, {"1", "{}"}},
      {R"({"type":"string","maxLength":2})", {R"("éé")"}, {R"("abc")"}},
      {R"({"type":"string","pattern":"^[a-c]+$"})", {R"("abc")"}, {R"("abd")", R"("")"}},
      {R"({"type":"string","format":"date"})", {R"("2024-02-28")"}, {R"("yesterday")"}},
      {R"({"enum":["a","b c",1,null,true,[1,"x"],{"k":"v"}]})",
       {R"("a")", R"("b c")", "1", "null", "true", R"([1,"x"])", R"({"k":"v"})"},
       {R"("c")", "2", "false"}},
      {R"({"type":["integer","null"],"minimum":3})", {"3", "null"}, {"2", "3.5", R"("3")"}},
      {R"({"type":"number"})", {"-1.5", "0", "1e-07"}, {R"("1")"}},
      {R"({"type":"array","items":{"type":"boolean"},"minItems":1})",
       {"[true]", "[true,false]"},
       {"[]", "[1]"}},
      {R"({"type":"object","properties":{"Z":{"type":"null"},"a b":{"type":"integer"}}})",
       {"{}", R"({"Z":null})", R"({"a b":1,"Z":null})"},
       {R"({"c":1})"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"}})",
       {"{}", R"({"x":1,"y":2})", R"({"é":1})"},
       {R"({"x":"y"})"}},
      {R"({"type":"object","properties":{"ab":{"type":"null"}},"additionalProperties":{"type":"integer"}})",
       {R"({"ab":null})", R"({"a":1})", R"({"ab":null,"abc":1})"},
       {R"({"ab":1})"}},
      {"true", {"[1,{\"a\":[{}]}]", R"("x")"}, {}},
      {R"({"$ref":"#/properties/a/items"})", {}, {}},
  };
  for (const SchemaCase& one : cases) {
    const auto grammar = OneTool(
        fmt::format(R"({{"type":"object","properties":{{"a":{}}},"required":["a"]}})", one.schema));
    if (one.valid.empty() && one.invalid.empty()) {
      EXPECT_FALSE(grammar.has_value()) << one.schema;  // a reference to nothing
      continue;
    }
    ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
    for (const bool is_valid : {true, false}) {
      for (const std::string& value : is_valid ? one.valid : one.invalid) {
        Json arguments;
        arguments["a"] = Json::parse(value);
        const std::string text = text::FormatValue(arguments, /*quote_keys=*/false);
        EXPECT_EQ((*grammar)->Accepts(Marked(text)), is_valid) << one.schema << ": " << text;
      }
    }
  }
}

// A name that the reader could take for something else is written between marks.
TEST(ToolCalls, NamesThatAreNotBare) {
  const auto grammar =
      OneTool(R"({"type":"object","properties":{"a:b":{"type":"integer"}},"required":["a:b"]})");
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  const std::string text = R"({<|"|>a:b<|"|>:1})";
  EXPECT_TRUE((*grammar)->Accepts(Marked(text)));
  EXPECT_EQ(text::ParseToolCall("call:f" + text)->arguments, R"({"a:b":1})");
}

TEST(ToolCalls, WithoutParameters) {
  for (const char* parameters :
       {"null", "{}", R"({"type":"object"})", R"({"type":"object","properties":{}})"}) {
    const auto grammar = OneTool(parameters);
    ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
    EXPECT_TRUE((*grammar)->Accepts(Marked("{}"))) << parameters;
    EXPECT_FALSE((*grammar)->Accepts(Marked("{a:1}"))) << parameters;
  }
  const auto any = OneTool(R"({"type":"object","additionalProperties":true})");
  EXPECT_TRUE(any.value()->Accepts(Marked(R"({a:[1,{b:<|"|>}<|"|>}]})")));
}

// Whatever random tokens the masks let through, the reader of calls understands.
TEST(ToolCalls, RandomAnswersAreRead) {
  const text::Tokenizer tokenizer = text::Tokenizer::Open(NIBBLE_SOURCE_DIR "/models/tiny").value();
  const auto grammar = OneTool(
      R"({"type":"object","properties":{"s":{"type":"string","maxLength":8},)"
      R"("o":{"additionalProperties":{"type":["number","null","boolean"]}},)"
      R"("l":{"type":"array","items":{"enum":["x","y"]},"maxItems":3}},"required":["s","l"]})");
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  int n_read = 0;
  for (int seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const std::shared_ptr<TokenConstraint> constraint = Grammar::NewConstraint(*grammar);
    std::vector<uint64_t> mask(Tiny()->n_words());
    std::string text;
    for (int n = 0; n < 200 && !constraint->is_complete(); ++n) {
      constraint->FillMask(mask);
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < Tiny()->size(); ++id) {
        if ((mask[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) allowed.push_back(id);
      }
      ASSERT_FALSE(allowed.empty()) << text;
      const int32_t id = allowed[random() % allowed.size()];
      constraint->Accept(id);
      const auto byte = tokenizer.ByteOf(id);
      text += byte.has_value() ? std::string(1, static_cast<char>(*byte))
                               : std::string(tokenizer.TokenOf(id));
    }
    if (!constraint->is_complete()) continue;
    ASSERT_TRUE(text.starts_with("<|tool_call>") && text.ends_with("<tool_call|>")) << text;
    const auto call = text::ParseToolCall(text.substr(12, text.size() - 24));
    ASSERT_TRUE(call.has_value()) << text << call.error().message;
    const Json arguments = Json::parse(call->arguments);
    EXPECT_TRUE(arguments["s"].is_string() && arguments["l"].is_array()) << text;
    ++n_read;
  }
  EXPECT_GT(n_read, 10);
}

}  // namespace
}  // namespace nibble::grammar
