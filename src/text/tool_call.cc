#include "text/tool_call.h"

#include <array>

#include "base/ascii.h"
#include "base/json.h"
#include "text/chat_value.h"
#include "text/utf8.h"

namespace nibble::text {
namespace {

constexpr int kMaxDepth = kMaxJsonDepth;

// [-]digits[.digits][e[+-]digits], without leading zeros.
bool IsJsonNumber(std::string_view text) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t begin = i;
    while (i < text.size() && IsAsciiDigit(text[i])) ++i;
    return i - begin;
  };
  if (i < text.size() && text[i] == '-') ++i;
  const size_t first = i;
  const size_t n_whole = digits();
  if (n_whole == 0 || (n_whole > 1 && text[first] == '0')) return false;
  if (i < text.size() && text[i] == '.') {
    ++i;
    if (digits() == 0) return false;
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) ++i;
    if (digits() == 0) return false;
  }
  return i == text.size();
}

std::string JsonString(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A value without quotes: a scalar if it is spelled like one, else a word.
std::string BareValue(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kNames = {
      {{"true", "true"},
       {"false", "false"},
       {"null", "null"},
       {"True", "true"},
       {"False", "false"},
       {"None", "null"}}};
  for (const auto& [spelling, json] : kNames) {
    if (text == spelling) return std::string(json);
  }
  return IsJsonNumber(text) ? std::string(text) : JsonString(text);
}

class CallReader {
 public:
  explicit CallReader(std::string_view text) : text_(text) {}

  Result<ToolCall> Read() {
    SkipSpace();
    if (!Take("call:")) return Expected("call:");
    const size_t brace = text_.find('{', at_);
    if (brace == std::string_view::npos) return Expected("{ behind the name");
    const std::string_view name = StripWhitespace(text_.substr(at_, brace - at_));
    if (name.empty()) return Expected("a name");
    at_ = brace;
    ToolCall call{.name = std::string(name), .arguments = {}};
    NIBBLE_ASSIGN_OR_RETURN(call.arguments, ReadObject(1));
    SkipSpace();
    if (at_ < text_.size()) return Expected("the end");
    return call;
  }

 private:
  std::unexpected<Error> Expected(std::string_view what) const {
    return Fail("byte {}: expected {}", at_, what);
  }

  void SkipSpace() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").contains(text_[at_])) ++at_;
  }

  bool Take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  // At `{`.
  Result<std::string> ReadObject(int depth) {
    return ReadItems('}', [&]() -> Result<std::string> {
      NIBBLE_ASSIGN_OR_RETURN(std::string item, ReadKey());
      item += ':';
      NIBBLE_ASSIGN_OR_RETURN(const std::string value, ReadValue(depth));
      return item + value;
    });
  }

  // From an opening bracket to `close`; the items, joined by commas, with both brackets.
  template <typename ReadItem>
  Result<std::string> ReadItems(char close, const ReadItem& read_item) {
    std::string json(1, text_[at_++]);
    for (SkipSpace(); !Take({&close, 1}); SkipSpace()) {
      if (json.size() > 1) {
        if (!Take(",")) return Expected(fmt::format(", or {}", close));
        SkipSpace();
        if (Take({&close, 1})) break;  // a comma behind the last item
        json += ',';
      }
      NIBBLE_ASSIGN_OR_RETURN(const std::string item, read_item());
      json += item;
    }
    return json + close;
  }

  Result<std::string> ReadKey() {
    SkipSpace();
    std::string key;
    if (std::string text; TakeQuoted(":=", &text)) {
      key = text;
    } else {
      const size_t end = text_.find_first_of(":={}[],", at_);
      key = StripWhitespace(text_.substr(at_, end - at_));
      if (key.empty()) return Expected("a key");
      at_ = std::min(end, text_.size());
    }
    SkipSpace();
    if (!Take(":") && !Take("=")) return Expected(": behind a key");
    return JsonString(key);
  }

  Result<std::string> ReadValue(int depth) {
    if (depth >= kMaxDepth) return Expected(fmt::format("at most {} levels", kMaxDepth));
    SkipSpace();
    if (at_ == text_.size()) return Expected("a value");
    if (text_[at_] == '{') return ReadObject(depth + 1);
    if (text_[at_] == '[') return ReadItems(']', [&] { return ReadValue(depth + 1); });
    if (std::string text; TakeQuoted(",}]", &text)) return JsonString(text);
    if (text_.substr(at_).starts_with(kQuote)) return Expected("a closing mark of the text");
    const size_t end = std::min(text_.find_first_of(",{}[]", at_), text_.size());
    const std::string_view bare = StripWhitespace(text_.substr(at_, end - at_));
    if (bare.empty()) return Expected("a value");
    at_ = end;
    return BareValue(bare);
  }

  // Text in quotes of any kind. JSON's and Python's count only if what follows them is one of
  // `followers`; else they are part of a bare word.
  bool TakeQuoted(std::string_view followers, std::string* text) {
    if (text_.substr(at_).starts_with(kQuote)) {
      const size_t begin = at_ + kQuote.size();
      const size_t end = text_.find(kQuote, begin);
      if (end == std::string_view::npos) return false;
      *text = text_.substr(begin, end - begin);
      at_ = end + kQuote.size();
      return true;
    }
    const size_t begin = at_;
    if (at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'') && TakeEscaped(text)) {
      SkipSpace();
      if (at_ < text_.size() && followers.contains(text_[at_])) return true;
    }
    at_ = begin;
    return false;
  }

  // From a quote to the next one that no backslash escapes.
  bool TakeEscaped(std::string* text) {
    const char quote = text_[at_++];
    std::string json = "\"";  // in JSON's own spelling, for its reader to decode
    for (; at_ < text_.size() && text_[at_] != quote; ++at_) {
      const char c = text_[at_];
      const bool escapes = c == '\\' && at_ + 1 < text_.size();
      if (escapes && text_[at_ + 1] == '\'') {
        ++at_;  // Python's \', which JSON does not have
        json += '\'';
      } else if (escapes) {
        json += c;
        json += text_[++at_];
      } else if (c == '"') {
        json += "\\\"";
      } else if (c == '\n') {
        json += "\\n";
      } else {
        json += c;
      }
    }
    if (at_ == text_.size()) return false;
    ++at_;
    const Json value = Json::parse(json + '"', nullptr, false);
    if (!value.is_string()) return false;
    *text = value.get<std::string>();
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Result<ToolCall> ParseToolCall(std::string_view call) { return CallReader(call).Read(); }

}  // namespace nibble::text
