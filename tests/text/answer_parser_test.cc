// Right values: the formats of Google's chat template, and what OpenAI's clients expect of them.
#include "text/answer_parser.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "fixture.h"
#include "text/utf8.h"

namespace nibble::text {
namespace {

const Tokenizer& Tiny() {
  static const Tokenizer tokenizer = Tokenizer::Open(kTinyModel).value();
  return tokenizer;
}

void Add(AnswerDelta delta, AnswerDelta* sum) {
  EXPECT_TRUE(IsValidUtf8(delta.content) && IsValidUtf8(delta.reasoning));
  sum->content += delta.content;
  sum->reasoning += delta.reasoning;
  for (ToolCall& call : delta.calls) sum->calls.push_back(std::move(call));
}

AnswerDelta ParseIds(const std::vector<TokenId>& ids,
                     AnswerFormat format = AnswerFormat::kChatTools) {
  AnswerParser parser(Tiny(), format);
  AnswerDelta sum;
  for (const TokenId id : ids) Add(parser.Push(id), &sum);
  Add(parser.Finish(), &sum);
  return sum;
}

AnswerDelta ParseText(std::string_view text, AnswerFormat format = AnswerFormat::kChatTools) {
  return ParseIds(Tiny().Encode(text, false), format);
}

TEST(AnswerParser, ThoughtsAreToldFromContent) {
  const AnswerDelta answer = ParseText("<|channel>thought\nLet me see.\n<channel|>It is so.");
  EXPECT_EQ(answer.reasoning, "Let me see.");
  EXPECT_EQ(answer.content, "It is so.");
  EXPECT_EQ(ParseText("<|channel>thought\n<channel|>Yes").content, "Yes");
  EXPECT_EQ(ParseText("<|channel>thought\n<channel|>Yes").reasoning, "");
  EXPECT_EQ(ParseText("<|channel>thought\na\n\nb\n").reasoning, "a\n\nb");
  EXPECT_EQ(ParseText("<|channel>this<channel|>").reasoning, "this");
  EXPECT_EQ(ParseText("a<channel|>b").content, "ab");
}

// Cases E9 (labels that come in pieces) and F5 of the field reports.
TEST(AnswerParser, ResultDoesNotDependOnTokenBorders) {
  const std::string text =
      "<|channel>thought\nthought\nhm<channel|>Now: <|tool_call>call:a{x:1}<tool_call|>"
      "<|tool_call>call:b{y:<|\"|>p, {q}<|\"|>}<tool_call|><|tool_call>call:c{z:[{k:true}]}"
      "<tool_call|>";
  const AnswerDelta whole = ParseText(text);
  EXPECT_EQ(whole.reasoning, "thought\nhm");
  EXPECT_EQ(whole.content, "Now: ");
  ASSERT_EQ(whole.calls.size(), 3u);
  EXPECT_EQ(whole.calls[0].name, "a");
  EXPECT_EQ(whole.calls[1].arguments, R"({"y":"p, {q}"})");
  EXPECT_EQ(whole.calls[2].arguments, R"({"z":[{"k":true}]})");
  const auto splits_mark = [&](size_t i) {  // a mark is one token, always
    const size_t open = text.rfind('<', i - 1);
    const size_t close = text.find('>', open);
    return open < i && close != std::string::npos && close >= i && close - open < 15;
  };
  for (size_t i = 1; i < text.size(); ++i) {
    if (splits_mark(i)) continue;
    std::vector<TokenId> ids = Tiny().Encode(text.substr(0, i), false);
    for (const TokenId id : Tiny().Encode(text.substr(i), false)) ids.push_back(id);
    const AnswerDelta answer = ParseIds(ids);
    ASSERT_EQ(answer.content, whole.content) << i;
    ASSERT_EQ(answer.reasoning, whole.reasoning) << i;
    ASSERT_EQ(answer.calls.size(), 3u) << i;
    for (int k = 0; k < 3; ++k) ASSERT_EQ(answer.calls[k].arguments, whole.calls[k].arguments) << i;
  }
}

// Case F4 of the field reports.
TEST(AnswerParser, HtmlInAnArgumentArrivesAsItWas) {
  const std::string html = R"(<html><meta x="1"><b>a<b)";
  const AnswerDelta answer =
      ParseText("<|tool_call>call:write_file{text:<|\"|>" + html + "<|\"|>}<tool_call|>");
  ASSERT_EQ(answer.calls.size(), 1u);
  EXPECT_EQ(Json::parse(answer.calls[0].arguments)["text"], html);
  EXPECT_EQ(answer.content, "");
}

// Case F3 of the field reports.
TEST(AnswerParser, MalformedAndUnfinishedCallsAreTextWithAMarker) {
  for (const char* text : {"<|tool_call>call:f{a<tool_call|>", "<|tool_call>call:f{a:<|\"|>x"}) {
    const AnswerDelta answer = ParseText(text);
    EXPECT_TRUE(answer.calls.empty());
    EXPECT_TRUE(answer.content.starts_with("[malformed tool call, byte ")) << answer.content;
    EXPECT_NE(answer.content.find("call:f{a"), std::string::npos);
  }
  EXPECT_EQ(ParseText("<|tool_call>call:f{}").calls.size(), 1u);  // whole, if not closed
}

TEST(AnswerParser, CallsThatWereNotOfferedAreText) {
  const AnswerDelta answer = ParseText("<|tool_call>call:f{}<tool_call|>!", AnswerFormat::kChat);
  EXPECT_EQ(answer.content, "call:f{}!");
  EXPECT_TRUE(answer.calls.empty());
  EXPECT_EQ(
      ParseText("<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>", AnswerFormat::kChat).content,
      "call:f{a:\"x\"}");
  EXPECT_EQ(ParseText("<|tool_response>x<|turn>y<tool_response|>").content, "xy");
  // A completion shows what its tokenizer does not call special.
  EXPECT_EQ(ParseText("<|channel>x", AnswerFormat::kPlain).content, "<|channel>x");
}

// Case G1 of the field reports.
TEST(AnswerParser, BytesOfACharacterComeTogetherOrNotAtAll) {
  std::vector<TokenId> ids = Tiny().Encode("hi", false);
  for (const char* byte : {"<0xF0>", "<0x9F>", "<0x98>", "<0x80>"}) {
    ids.push_back(*Tiny().IdOf(byte));
  }
  AnswerParser parser(Tiny(), AnswerFormat::kChat);
  std::string before;
  for (const TokenId id : ids) before += parser.Push(id).content;
  EXPECT_EQ(before, "hi");
  EXPECT_EQ(parser.Finish().content, "\U0001F600");
  ids.pop_back();
  EXPECT_EQ(ParseIds(ids).content, "hi");
  ids.push_back(*Tiny().IdOf("<0xFF>"));
  EXPECT_EQ(ParseIds(ids).content, "hi\uFFFD\uFFFD\uFFFD\uFFFD");
}

}  // namespace
}  // namespace nibble::text
