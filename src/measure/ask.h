// Questions through the engine: chat prompt, greedy answer, judged. Tested by
// tests/interop/test_generate.py.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/engine.h"
#include "measure/suite.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace nibble::measure {

// Tokens that an answer may have.
inline constexpr int kMaxAnswerTokens = 64;

struct Answer {
  Question question;
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> token_ids;  // the stop token included
  std::string text;
  bool is_stopped = false;  // by a stop token, not by the limit
  bool is_correct = false;
};

// Asks all questions, as many at once as the engine runs; answers come in the questions' order.
// on_answered is called with the number done so far.
Result<std::vector<Answer>> AskAll(engine::Engine& engine, const text::Tokenizer& tokenizer,
                                   const text::ChatOptions& chat, std::span<const int32_t> stop_ids,
                                   std::span<const Question> questions,
                                   const std::function<void(size_t n_done)>& on_answered);

// One line of answers.jsonl.
Json ToJson(const Answer& answer);

// {"correct", "total", "accuracy", "kinds": {kind: {"correct", "total"}}}
Json Summarize(std::span<const Answer> answers);

}  // namespace nibble::measure
