// OpenAI's JSON: what is sent, what replies say, whole and streamed, and what vLLM's log tells.
#include "measure/openai.h"

#include <gtest/gtest.h>

#include "measure/server_log.h"

namespace nibble::measure {
namespace {

TEST(RequestBody, OfAChat) {
  const Json body = RequestBody({.messages = {{"user", "hi"}},
                                 .answer_lead = "It is",
                                 .tools_json = "[{\"type\":\"function\"}]",
                                 .max_tokens = 5,
                                 .n_top_logprobs = 3},
                                "m");
  EXPECT_EQ(body, Json::parse(R"({"model": "m", "temperature": 0, "max_tokens": 5,
      "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "It is"}],
      "continue_final_message": true, "add_generation_prompt": false, "logprobs": true,
      "top_logprobs": 3, "tools": [{"type": "function"}], "tool_choice": "auto"})"));
}

TEST(RequestBody, OfACompletion) {
  const Json body = RequestBody({.text = "hi", .n_top_logprobs = 3, .reads_prompt = true}, "m");
  EXPECT_EQ(body, Json::parse(R"({"model": "m", "temperature": 0, "max_tokens": 1,
                                  "prompt": "hi", "logprobs": 3, "echo": true})"));
}

TEST(ParseReply, OfAChat) {
  const auto reply = ParseReply(R"({"choices": [{"message": {"content": null, "tool_calls":
      [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}]}, "finish_reason": "tool_calls",
      "logprobs": {"content": [{"token": "x", "logprob": -0.5, "top_logprobs":
      [{"token": "x", "logprob": -0.5}, {"token": "y", "logprob": -2}]}]}}],
      "usage": {"prompt_tokens": 7, "completion_tokens": 1,
      "prompt_tokens_details": {"cached_tokens": 4}}})",
                                {});
  ASSERT_TRUE(reply.has_value()) << reply.error().message;
  EXPECT_EQ(reply->text, "");
  EXPECT_EQ(reply->tool_calls.at(0).arguments_json, "{\"a\": 1}");
  EXPECT_EQ(reply->finish_reason, "tool_calls");
  EXPECT_EQ(reply->n_prompt_tokens, 7);
  EXPECT_EQ(reply->n_cached_tokens, 4);
  EXPECT_EQ(reply->steps.at(0).top.at(1).token, "y");
}

TEST(ParseReply, OfAnEchoedPrompt) {
  const Query query{.text = "ab", .reads_prompt = true};
  const auto reply = ParseReply(R"({"choices": [{"text": "abc", "logprobs": {
      "tokens": ["<bos>", "a", "b", "c"], "token_logprobs": [null, -1, -2, -3],
      "top_logprobs": [null, {"q": -4, "a": -1}, {"b": -2}, {"c": -3}]}}],
      "usage": {"prompt_tokens": 3, "completion_tokens": 1}})",
                                query);
  ASSERT_TRUE(reply.has_value()) << reply.error().message;
  ASSERT_EQ(reply->steps.size(), 2u);
  EXPECT_EQ(reply->steps[0].top[0].token, "a");  // best first
  EXPECT_EQ(*reply->steps[1].logprob, -2);
  const auto without =
      ParseReply(R"({"choices": [{"text": "c"}], "usage": {"prompt_tokens": 3}})", query);
  EXPECT_TRUE(without.error().message.contains("no log-probabilities of the prompt"));
}

TEST(ParseReply, WhatIsNoReplyIsAnError) {
  for (const char* body : {"", "[]", "{}", R"({"choices": []})", R"({"choices": 5})",
                           R"({"choices": [{"message": {"tool_calls": [{}]}}]})",
                           R"({"choices": [{"logprobs": {"content": [{"token": 5}]}}]})"}) {
    EXPECT_FALSE(ParseReply(body, {}).has_value()) << body;
  }
}

TEST(StreamedReply, IsTheSameHoweverItIsCut) {
  const std::string stream =
      "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n"
      ": a comment\n\ndata: {\"choices\":[{\"text\":\"h\"}]}\n\n"
      "data:{\"choices\":[{\"delta\":{\"content\":\"i\"},\"finish_reason\":\"length\"}]}\n\n"
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n"
      "data: [DONE]\n\n";
  for (size_t n = 1; n < stream.size(); n += 7) {
    StreamedReply reply;
    int n_first = 0;
    for (size_t at = 0; at < stream.size(); at += n) n_first += reply.Push(stream.substr(at, n));
    const auto whole = reply.Finish();
    ASSERT_TRUE(whole.has_value()) << whole.error().message;
    EXPECT_EQ(whole->text, "hi");
    EXPECT_EQ(whole->finish_reason, "length");
    EXPECT_EQ(whole->n_completion_tokens, 2);
    EXPECT_EQ(n_first, 1);
  }
  StreamedReply cut;
  cut.Push(stream.substr(0, 100));
  EXPECT_TRUE(cut.Finish().error().message.contains("[DONE]"));
  StreamedReply failed;
  failed.Push("data: {\"error\":{\"message\":\"out of memory\"}}\n\ndata: [DONE]\n\n");
  EXPECT_TRUE(failed.Finish().error().message.contains("out of memory"));
}

TEST(ErrorMessage, OfAnyBody) {
  EXPECT_EQ(ErrorMessage(R"({"error":{"message":"no"}})"), "no");
  EXPECT_EQ(ErrorMessage(R"({"message":"no"})"), "no");
  EXPECT_TRUE(ErrorMessage("<html>").contains("<html>"));
}

TEST(AddVllmLogFacts, ReadsWhatTheLogSays) {
  Json facts = {{"kv_tokens", "unknown"}};
  AddVllmLogFacts("INFO GPU KV cache size: 519,568 tokens\nINFO Model loading took 2.5 GiB\n",
                  &facts);
  EXPECT_EQ(facts["kv_tokens"], 519568);
  EXPECT_EQ(facts["weight_bytes"], int64_t{5} << 29);
  facts = {{"kv_tokens", "unknown"}};
  AddVllmLogFacts("nothing", &facts);
  EXPECT_EQ(facts, Json({{"kv_tokens", "unknown"}}));
}

}  // namespace
}  // namespace nibble::measure
