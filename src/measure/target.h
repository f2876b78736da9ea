// What is measured: the engine in this process, or a server that speaks OpenAI's API. Suites ask
// through this interface alone and do not know which it is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace nibble::measure {

struct Message {
  std::string role = {};
  std::string content = {};
};

// Greedy always. Either `messages` through the chat template, thinking off, or `text` as it is.
struct Query {
  std::vector<Message> messages = {};
  std::string answer_lead = {};  // the answer's beginning, given in advance; with messages alone
  std::string text = {};
  std::string tools_json = {};  // OpenAI's "tools"; "": none are offered
  int max_tokens = 1;
  bool ignore_eos = false;
  bool stream = false;     // so that first_token_s is known
  int n_top_logprobs = 0;  // most likely tokens to report at each step
  // Report the steps of `text` itself, from its second token on, and no answer.
  bool reads_prompt = false;
};

struct TokenLogprob {
  std::string token = {};  // as text
  double logprob = 0;
};

struct Step {
  std::string token = {};
  std::optional<double> logprob = {};  // nothing where the target does not tell it
  std::vector<TokenLogprob> top = {};  // best first
};

struct ToolCall {
  std::string name = {};
  std::string arguments_json = {};
};

struct Reply {
  std::string text = {};
  std::vector<ToolCall> tool_calls = {};
  std::string finish_reason = {};  // "stop", "length", "tool_calls"
  std::vector<Step> steps = {};    // if n_top_logprobs > 0 or reads_prompt
  // Where the target tells them:
  std::vector<int32_t> prompt_ids = {};
  std::vector<int32_t> token_ids = {};
  int64_t n_prompt_tokens = 0;
  int64_t n_completion_tokens = 0;
  int64_t n_cached_tokens = 0;  // of the prompt, not read again
  double time_s = 0;
  double first_token_s = 0;  // if streamed; 0: no text came
  int n_attempts = 1;
};

// Gets the reply of queries[index]; false: ask no more. One call at a time.
using OnReply = std::function<bool(size_t index, Result<Reply> reply)>;

class Target {
 public:
  Target() = default;
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;
  virtual ~Target() = default;

  // Asks them in this order, `concurrency` at a time, and returns when all replies are in. What
  // goes wrong is an error of the query concerned.
  virtual void AskAll(std::span<const Query> queries, int concurrency, const OnReply& on_reply) = 0;

  Result<Reply> Ask(const Query& query) {
    Result<Reply> answer = Fail("no reply");
    AskAll({&query, 1}, 1, [&](size_t, Result<Reply> reply) {
      answer = std::move(reply);
      return true;
    });
    return answer;
  }
};

}  // namespace nibble::measure
