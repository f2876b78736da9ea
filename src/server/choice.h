// One answer as it grows: tokens in, pieces of content, thoughts, calls and log-probabilities out.
// Tested by choice_test.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/generation_request.h"
#include "server/stop_strings.h"
#include "text/answer_parser.h"

namespace nibble::server {

// A token as OpenAI's log-probabilities show it.
struct TokenText {
  std::string text;   // a byte that is no character by itself: bytes:\xf0
  std::string bytes;  // what it adds to the answer
};

TokenText TextOf(const text::Tokenizer& tokenizer, text::TokenId id);

struct TokenLogprobs {
  TokenText token;
  double logprob = 0;
  std::vector<std::pair<TokenText, double>> top = {};  // best first
};

struct ChoiceDelta {
  text::AnswerDelta answer;
  std::vector<TokenLogprobs> logprobs;  // of the content

  bool empty() const {
    return answer.content.empty() && answer.reasoning.empty() && answer.calls.empty();
  }
};

class Choice {
 public:
  // Both must outlive this object.
  Choice(const GenerationRequest& request, const text::Tokenizer& tokenizer);

  // What became certain with this event. Nothing once finished().
  ChoiceDelta Take(const engine::Event& event);

  bool finished() const { return !finish_reason_.empty(); }
  // It finished, but the engine would go on.
  bool must_cancel() const { return must_cancel_; }
  // stop, length or tool_calls, as OpenAI's table has them; "" before.
  const std::string& finish_reason() const { return finish_reason_; }
  int64_t n_tokens() const { return n_tokens_; }
  int64_t n_reasoning_tokens() const { return n_reasoning_tokens_; }

 private:
  void AddContent(std::string_view content, ChoiceDelta* delta);
  void AddLogprobs(const engine::Event& event);
  void Finish(engine::FinishReason reason, ChoiceDelta* delta);

  const GenerationRequest& request_;
  const text::Tokenizer& tokenizer_;
  text::AnswerParser parser_;
  StopStrings stops_;
  std::vector<TokenLogprobs> logprobs_;  // of tokens whose text is held back
  int64_t n_tokens_ = 0;
  int64_t n_reasoning_tokens_ = 0;
  int n_calls_ = 0;
  bool must_cancel_ = false;
  std::string finish_reason_;
};

}  // namespace nibble::server
