#include "text/answer_parser.h"

#include <algorithm>
#include <utility>

#include "text/chat_value.h"

namespace nibble::text {
namespace {

constexpr std::string_view kLabel = "thought\n";

}  // namespace

AnswerParser::AnswerParser(const Tokenizer& tokenizer, AnswerFormat format)
    : tokenizer_(&tokenizer), format_(format), detokenizer_(tokenizer) {
  if (format == AnswerFormat::kPlain) return;
  channel_begin_ = tokenizer.IdOf("<|channel>");
  channel_end_ = tokenizer.IdOf("<channel|>");
  call_begin_ = tokenizer.IdOf("<|tool_call>");
  call_end_ = tokenizer.IdOf("<tool_call|>");
  quote_ = tokenizer.IdOf(kQuote);
  for (const std::string_view mark :
       {"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
        "<tool_response|>", "<|tool>", "<tool|>", "<|turn>", "<turn|>", "<|think|>"}) {
    if (const auto id = tokenizer.IdOf(mark); id.has_value()) marks_.push_back(*id);
  }
}

bool AnswerParser::IsMark(TokenId id) const {
  return id == quote_ || std::ranges::find(marks_, id) != marks_.end();
}

AnswerDelta AnswerParser::Push(TokenId id) {
  AnswerDelta delta;
  if (id == channel_begin_) {
    Close(&delta);
    part_ = Part::kThought;
    in_label_ = true;
  } else if (id == call_begin_ && format_ == AnswerFormat::kChatTools) {
    Close(&delta);
    part_ = Part::kCall;
  } else if (id == channel_end_ || id == call_end_) {
    Close(&delta);
  } else if (id == quote_) {
    Append(detokenizer_.Flush() + (part_ == Part::kCall ? std::string(kQuote) : "\""), &delta);
  } else if (!IsMark(id)) {
    Append(detokenizer_.Push(id), &delta);
  }
  return delta;
}

AnswerDelta AnswerParser::Finish() {
  AnswerDelta delta;
  Append(detokenizer_.FlushWhole(), &delta);
  Close(&delta);
  return delta;
}

void AnswerParser::Append(const std::string& text, AnswerDelta* delta) {
  if (part_ == Part::kCall) {
    call_ += text;
  } else if (part_ == Part::kThought) {
    AppendThought(text, delta);
  } else {
    delta->content += text;
  }
}

// The label goes, and so does one line break before the end: the format's own.
void AnswerParser::AppendThought(std::string_view text, AnswerDelta* delta) {
  held_ += text;
  if (in_label_) {
    if (kLabel.starts_with(held_) && held_ != kLabel) return;
    if (held_.starts_with(kLabel)) held_.erase(0, kLabel.size());
    in_label_ = false;
  }
  const bool holds_break = held_.ends_with('\n');
  if (holds_break) held_.pop_back();
  delta->reasoning += std::exchange(held_, std::string(holds_break ? 1 : 0, '\n'));
}

// Ends the part that is open; what follows is content until a mark says otherwise.
void AnswerParser::Close(AnswerDelta* delta) {
  Append(detokenizer_.Flush(), delta);
  if (part_ == Part::kCall) CloseCall(delta);
  held_.clear();
  part_ = Part::kContent;
}

void AnswerParser::CloseCall(AnswerDelta* delta) {
  std::string text = std::exchange(call_, std::string());
  Result<ToolCall> call = ParseToolCall(text);
  if (call.has_value()) {
    delta->calls.push_back(*std::move(call));
  } else {
    delta->content += fmt::format("[malformed tool call, {}] {}", call.error().message, text);
  }
}

}  // namespace nibble::text
