// What a model's answer says, piece by piece: content, thoughts and tool calls, told apart by token
// ids before they become text.
//
// A thought is <|channel>thought\n...<channel|>; its label is no part of it. A call is
// <|tool_call>...<tool_call|> and is given whole, since only a whole one is known to be
// well-formed; one that is not is content, with a marker that says why. Marks never appear in any
// text. What comes out does not depend on how tokens are grouped. Tested by answer_parser_test.cc.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tool_call.h"

namespace nibble::text {

struct AnswerDelta {
  std::string content;
  std::string reasoning;
  std::vector<ToolCall> calls;
};

enum class AnswerFormat {
  kPlain,      // everything is content
  kChat,       // content and thoughts; calls are content
  kChatTools,  // content, thoughts and calls
};

class AnswerParser {
 public:
  enum class Part { kContent, kThought, kCall };

  // `tokenizer` must outlive this object.
  AnswerParser(const Tokenizer& tokenizer, AnswerFormat format);

  // What became certain with this token; not for the token that ended generation.
  AnswerDelta Push(TokenId id);
  // What was held back, at the end. A character that the end cut in two is left out, and an
  // unfinished call is content.
  AnswerDelta Finish();

  // Of the answer, where the next token goes.
  Part part() const { return part_; }
  // Whether the token belongs to the format and is no text.
  bool IsMark(TokenId id) const;

 private:
  void Append(const std::string& text, AnswerDelta* delta);
  void AppendThought(std::string_view text, AnswerDelta* delta);
  void Close(AnswerDelta* delta);
  void CloseCall(AnswerDelta* delta);

  const Tokenizer* tokenizer_;
  AnswerFormat format_;
  Detokenizer detokenizer_;
  std::optional<TokenId> channel_begin_;
  std::optional<TokenId> channel_end_;
  std::optional<TokenId> call_begin_;
  std::optional<TokenId> call_end_;
  std::optional<TokenId> quote_;
  std::vector<TokenId> marks_;  // of the format, never text; the quote is one, too
  Part part_ = Part::kContent;
  std::string call_;       // of the call so far
  bool in_label_ = false;  // of a thought
  std::string held_;       // of a thought: its label so far, or a line break at its end
};

}  // namespace nibble::text
