// Answers in the JSON that OpenAI's clients read: whole ones, and the chunks of a stream.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/choice.h"

namespace nibble::server {

struct Usage {
  int64_t n_prompt_tokens = 0;
  int64_t n_cached_tokens = 0;  // of these
  int64_t n_completion_tokens = 0;
  int64_t n_reasoning_tokens = 0;  // of these
};

// What every chunk and every whole answer of one request repeats.
struct AnswerHead {
  std::string id;  // chatcmpl-..., cmpl-...
  int64_t created_s = 0;
  std::string model;
  bool is_chat = true;
  bool shows_logprobs = false;
};

// What a choice has given so far, or since the last chunk.
struct AnswerPiece {
  int choice_idx = 0;
  std::string content = {};
  std::string reasoning = {};
  std::vector<text::ToolCall> calls = {};
  int first_call_idx = 0;  // of the calls, in the choice
  std::vector<TokenLogprobs> logprobs = {};
  std::vector<int64_t> text_offsets = {};  // of logprobs, in characters
  bool has_first_token = false;    // logprobs begins with the prompt's first, which has none
  std::string finish_reason = {};  // "": not finished
};

// The first chunk of a choice in a chat: its role.
std::string RoleChunk(const AnswerHead& head, int choice_idx);
std::string Chunk(const AnswerHead& head, const AnswerPiece& piece);
std::string UsageChunk(const AnswerHead& head, const Usage& usage);
std::string WholeAnswer(const AnswerHead& head, const std::vector<AnswerPiece>& pieces,
                        const Usage& usage);

// One event of a stream.
std::string SseEvent(std::string_view data);

// prefix + 24 random hexadecimal digits.
std::string RandomId(std::string_view prefix);

}  // namespace nibble::server
