#include "server/choice.h"

#include <gtest/gtest.h>

#include "scripted_model.h"

namespace nibble::server {
namespace {

using engine::FinishReason;

struct Whole {
  std::string content;
  std::string reasoning;
  std::vector<text::ToolCall> calls;
  std::vector<TokenLogprobs> logprobs;
  std::string finish_reason;
  int64_t n_tokens = 0;
  bool must_cancel = false;
};

GenerationRequest ChatRequest() {
  GenerationRequest request;
  request.format = text::AnswerFormat::kChat;
  request.engine.stop_ids = {1, 106, 50};
  return request;
}

GenerationRequest ToolRequest(ToolChoice choice) {
  GenerationRequest request = ChatRequest();
  request.format = text::AnswerFormat::kChatTools;
  request.tool_choice = choice;
  return request;
}

// The last token ends the answer by a stop id if it is one, else by the limit.
Whole Give(const GenerationRequest& request, const std::vector<int32_t>& ids) {
  Choice choice(request, TinyTokenizer());
  Whole whole;
  for (size_t i = 0; i < ids.size() && !choice.finished(); ++i) {
    engine::Event event;
    event.token_id = ids[i];
    const auto& stops = request.engine.stop_ids;
    if (std::ranges::find(stops, ids[i]) != stops.end()) {
      event.finish = FinishReason::kStop;
    } else if (i + 1 == ids.size()) {
      event.finish = FinishReason::kLength;
    }
    ChoiceDelta delta = choice.Take(event);
    whole.content += delta.answer.content;
    whole.reasoning += delta.answer.reasoning;
    std::ranges::move(delta.answer.calls, std::back_inserter(whole.calls));
    std::ranges::move(delta.logprobs, std::back_inserter(whole.logprobs));
  }
  whole.finish_reason = choice.finish_reason();
  whole.n_tokens = choice.n_tokens();
  whole.must_cancel = choice.must_cancel();
  return whole;
}

// Case E8 of the field reports.
TEST(Choice, EndOfTurnStopsAndIsCountedButNotShown) {
  const Whole whole = Give(ChatRequest(), Ids("Hello<turn|>"));
  EXPECT_EQ(whole.content, "Hello");
  EXPECT_EQ(whole.finish_reason, "stop");
  EXPECT_EQ(whole.n_tokens, static_cast<int64_t>(Ids("Hello").size()) + 1);
}

// Case E9 of the field reports.
TEST(Choice, NothingComesAfterACallHandsOver) {
  const Whole whole = Give(ToolRequest(ToolChoice::kAuto),
                           Ids("<|tool_call>call:f{}<tool_call|><|tool_response>invented"));
  EXPECT_EQ(whole.calls.size(), 1u);
  EXPECT_EQ(whole.content, "");
  EXPECT_EQ(whole.finish_reason, "tool_calls");
}

// Case G3 of the field reports.
TEST(Choice, StopStringAcrossTokens) {
  GenerationRequest request = ChatRequest();
  request.stop = {"en door"};
  const Whole whole = Give(request, Ids("A green door, and more of it"));
  EXPECT_EQ(whole.content, "A gre");
  EXPECT_EQ(whole.finish_reason, "stop");
  EXPECT_TRUE(whole.must_cancel);
  request.stop = {"never"};
  EXPECT_EQ(Give(request, Ids("A nev")).content, "A nev");  // held back, then delivered
}

TEST(Choice, StopStringsAreTextBeforeMinTokens) {
  GenerationRequest request = ChatRequest();
  request.stop = {"a"};
  request.engine.min_tokens = 3;
  EXPECT_EQ(Give(request, {Ids("a")[0], Ids("a")[0], Ids("a")[0], Ids("a")[0]}).content, "aaa");
}

// Case G2 of the field reports.
TEST(Choice, LimitInsideACharacter) {
  std::vector<int32_t> ids = Ids("hi");
  for (const char* byte : {"<0xF0>", "<0x9F>", "<0x98>"}) {
    ids.push_back(*TinyTokenizer().IdOf(byte));
  }
  const Whole whole = Give(ChatRequest(), ids);
  EXPECT_EQ(whole.content, "hi");
  EXPECT_EQ(whole.finish_reason, "length");
}

// Case F9 of the field reports, OpenAI's table: a named call ends with stop, all other calls with
// tool_calls.
TEST(Choice, FinishReasonsOfCalls) {
  const std::vector<int32_t> call = Ids("<|tool_call>call:f{}<tool_call|><|tool_response>");
  const std::vector<int32_t> words = Ids("words<turn|>");
  EXPECT_EQ(Give(ToolRequest(ToolChoice::kAuto), call).finish_reason, "tool_calls");
  EXPECT_EQ(Give(ToolRequest(ToolChoice::kAuto), words).finish_reason, "stop");
  EXPECT_EQ(Give(ChatRequest(), call).finish_reason, "stop");
  for (const ToolChoice choice : {ToolChoice::kRequired, ToolChoice::kNamed}) {
    const GenerationRequest request = ToolRequest(choice);
    const Whole whole = Give(request, call);
    EXPECT_EQ(whole.calls.size(), 1u);
    EXPECT_EQ(whole.finish_reason, choice == ToolChoice::kNamed ? "stop" : "tool_calls");
    const Whole plain = Give(request, words);
    EXPECT_TRUE(plain.calls.empty());
    EXPECT_EQ(plain.finish_reason, "stop");
    EXPECT_NE(plain.content.find("words"), std::string::npos);
  }
}

TEST(Choice, OneCallIsEnoughWhereParallelOnesAreOff) {
  GenerationRequest request = ToolRequest(ToolChoice::kAuto);
  const std::vector<int32_t> ids =
      Ids("<|tool_call>call:f{}<tool_call|><|tool_call>call:g{}<tool_call|><|tool_response>");
  EXPECT_EQ(Give(request, ids).calls.size(), 2u);
  request.single_call = true;
  const Whole whole = Give(request, ids);
  EXPECT_EQ(whole.calls.size(), 1u);
  EXPECT_EQ(whole.finish_reason, "tool_calls");
  EXPECT_TRUE(whole.must_cancel);
}

// Cases F4 and F8 of the field reports.
TEST(Choice, NoMarkEverInContent) {
  const std::vector<int32_t> ids =
      Ids("<|channel>thought\nhm\n<channel|>So: <|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>");
  for (GenerationRequest request : {ChatRequest(), ToolRequest(ToolChoice::kAuto)}) {
    for (const bool shows : {true, false}) {
      request.include_reasoning = shows;
      const Whole whole = Give(request, ids);
      EXPECT_EQ(whole.reasoning, shows ? "hm" : "");
      EXPECT_EQ(whole.content.find("<|"), std::string::npos) << whole.content;
      EXPECT_EQ(whole.content.find("|>"), std::string::npos) << whole.content;
    }
  }
}

// Case H3 of the field reports.
TEST(Choice, LogprobsAreOfTheContentAndTheirBytesMakeIt) {
  GenerationRequest request = ChatRequest();
  request.engine.logprobs = true;
  std::vector<int32_t> ids = Ids("<|channel>thought\nx<channel|>né");
  for (const char* byte : {"<0xE4>", "<0xBD>", "<0xA0>"}) {
    ids.push_back(*TinyTokenizer().IdOf(byte));
  }
  ids.push_back(106);
  const Whole whole = Give(request, ids);
  EXPECT_EQ(whole.content, "né你");
  std::string bytes;
  for (const TokenLogprobs& entry : whole.logprobs) bytes += entry.token.bytes;
  EXPECT_EQ(bytes, whole.content);
  EXPECT_EQ(whole.logprobs.back().token.text, "bytes:\\xa0");
}

}  // namespace
}  // namespace nibble::server
