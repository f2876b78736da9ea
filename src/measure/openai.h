// OpenAI's JSON, as far as measuring needs it: what is sent for a query, what a reply says. No
// network here. Tested by openai_test.cc.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "measure/target.h"

namespace nibble::measure {

// The body for /v1/chat/completions, or /v1/completions if the query has no messages.
Json RequestBody(const Query& query, const std::string& model);

// A whole reply's body. Errors name what is missing.
Result<Reply> ParseReply(std::string_view body, const Query& query);

// What a server says is wrong: OpenAI's {"error": {"message"}}, else the body's beginning.
std::string ErrorMessage(std::string_view body);

// A streamed reply, from its pieces: server-sent events, cut anywhere.
class StreamedReply {
 public:
  // True: the first token came with this piece.
  bool Push(std::string_view piece);
  // Error: an event that is no JSON, or that reports an error; no end.
  Result<Reply> Finish();

 private:
  void TakeEvent(std::string_view data);

  std::string line_;  // not ended yet
  Reply reply_;
  bool has_token_ = false;
  bool has_ended_ = false;
  std::string fault_;
};

}  // namespace nibble::measure
