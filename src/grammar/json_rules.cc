#include "grammar/json_rules.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json.h"
#include "grammar/vocabulary.h"
#include "text/chat_value.h"
#include "text/utf8.h"

namespace nibble::grammar {
namespace {

constexpr int64_t kMaxDigits = 18;
constexpr int64_t kMaxIndentation = 40;

// What a string holds without an escape.
CharacterSet PlainCharacters() { return ~CharacterSet({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}); }

// What a bare name holds: nothing that the format's reader takes for something else.
CharacterSet NameCharacters() {
  return ~CharacterSet({{0, ' '},
                        {'"', '"'},
                        {'\'', '\''},
                        {',', ','},
                        {':', ':'},
                        {'=', '='},
                        {'[', ']'},
                        {'{', '{'},
                        {'}', '}'},
                        {0x7F, 0xA0}});
}

bool IsBare(std::string_view name) {
  constexpr std::string_view kNotBare = "\"',:=[\\]{}\x7F";
  const bool is_plain = std::ranges::all_of(
      name, [&](char c) { return static_cast<uint8_t>(c) >= ' ' && !kNotBare.contains(c); });
  return is_plain && !name.empty() && text::StripWhitespace(name) == name;
}

}  // namespace

std::string JsonRules::TextOf(const nlohmann::ordered_json& value) const {
  if (notation_ == Notation::kJson) return value.dump();
  std::string text = text::FormatValue(Json(value), /*quote_keys=*/false);
  for (size_t at = 0; (at = text.find(text::kQuote, at)) != std::string::npos; ++at) {
    text.replace(at, text::kQuote.size(), 1, static_cast<char>(kQuoteMark));
  }
  return text;
}

std::string JsonRules::NameOf(const std::string& name) const {
  const bool is_bare = notation_ == Notation::kToolCall && IsBare(name);
  return is_bare ? name : TextOf(name);
}

NodeId JsonRules::AddNull(NodeId from) {
  if (notation_ == Notation::kJson) return builder_.Literal(from, "null");
  return builder_.OneOf(from, {"null", "None"});  // the format has Python's
}

NodeId JsonRules::AddQuote(NodeId from) {
  if (notation_ == Notation::kJson) return builder_.Literal(from, "\"");
  const NodeId end = builder_.NewNode();
  builder_.Bytes(from, kQuoteMark, kQuoteMark, end);
  return end;
}

NodeId JsonRules::AddSpace(NodeId from) {
  if (notation_ == Notation::kToolCall) return from;
  if (!space_.has_value()) {
    space_ = builder_.NewRule();
    const NodeId end = builder_.NewNode();
    builder_.Bytes(builder_.start(*space_), ' ', ' ', end);
    const NodeId line = builder_.Literal(builder_.start(*space_), "\n");
    builder_.Empty(builder_.Repeat(line, 0, kMaxIndentation,
                                   [this](NodeId begin) {
                                     const NodeId next = builder_.NewNode();
                                     builder_.Bytes(begin, ' ', ' ', next);
                                     builder_.Bytes(begin, '\t', '\t', next);
                                     return next;
                                   }),
                   end);
    builder_.Finish(end);
  }
  const NodeId end = builder_.Call(from, *space_);
  builder_.Empty(from, end);
  return end;
}

NodeId JsonRules::AddCharacter(NodeId from) {
  if (notation_ == Notation::kToolCall) {
    return grammar::AddCharacter(builder_, from, CharacterSet::All(), Spelling::kPlain);
  }
  const NodeId end = grammar::AddCharacter(builder_, from, PlainCharacters(), Spelling::kPlain);
  const NodeId escape = builder_.Literal(from, "\\");
  for (const char c : std::string_view("\"\\/bfnrt")) {
    builder_.Bytes(escape, static_cast<uint8_t>(c), static_cast<uint8_t>(c), end);
  }
  // \uXXXX, but no half of a surrogate pair.
  NodeId hex[5] = {builder_.Literal(escape, "u")};
  for (int i = 1; i < 5; ++i) hex[i] = builder_.NewNode();
  const NodeId behind_d = builder_.NewNode();
  const auto add_hex = [this](NodeId begin, std::string_view digits, NodeId next) {
    for (const char c : digits) {
      builder_.Bytes(begin, static_cast<uint8_t>(c), static_cast<uint8_t>(c), next);
    }
  };
  add_hex(hex[0], "0123456789abcefABCEF", hex[1]);
  add_hex(hex[0], "dD", behind_d);
  builder_.Bytes(behind_d, '0', '7', hex[2]);
  for (int i = 1; i < 4; ++i) {
    builder_.Bytes(hex[i], '0', '9', hex[i + 1]);
    builder_.Bytes(hex[i], 'a', 'f', hex[i + 1]);
    builder_.Bytes(hex[i], 'A', 'F', hex[i + 1]);
  }
  builder_.Empty(hex[4], end);
  return end;
}

NodeId JsonRules::AddString(NodeId from, int64_t least_characters, int64_t most_characters) {
  const NodeId end = builder_.Repeat(AddQuote(from), least_characters, most_characters,
                                     [this](NodeId begin) { return AddCharacter(begin); });
  return AddQuote(end);
}

RuleId JsonRules::String() {
  if (string_.has_value()) return *string_;
  string_ = builder_.NewRule();
  builder_.Finish(AddString(builder_.start(*string_), 0, ProgramBuilder::kNoLimit));
  return *string_;
}

NodeId JsonRules::AddOtherName(NodeId from, const std::vector<std::string>& names) {
  const bool is_json = notation_ == Notation::kJson;
  if (is_json && names.empty()) return builder_.Call(from, String());
  struct Place {
    NodeId node;
    bool is_name = false;
    std::map<char32_t, size_t> next;
  };
  std::vector<Place> places;
  places.push_back({.node = is_json ? AddQuote(from) : from, .next = {}});
  for (const std::string& name : names) {
    size_t place = 0;
    for (size_t i = 0; i < name.size();) {
      const text::Character character = text::CharacterAt(name, i);
      i += character.n_bytes;
      const auto [known, is_new] =
          places[place].next.try_emplace(character.code_point, places.size());
      place = known->second;
      if (is_new) places.push_back({.node = builder_.NewNode(), .next = {}});
    }
    places[place].is_name = true;
  }
  const CharacterSet plain = is_json ? PlainCharacters() : NameCharacters();
  const NodeId end = builder_.NewNode();
  const NodeId other = builder_.NewNode();  // the beginning of no name
  const auto close = [&](NodeId node) { builder_.Empty(is_json ? AddQuote(node) : node, end); };
  for (const Place& place : places) {
    std::vector<CharacterRange> begun;
    for (const auto& [c, next] : place.next) {
      const CharacterSet own = ~(~CharacterSet({{c, c}}) | ~plain);
      builder_.Empty(grammar::AddCharacter(builder_, place.node, own, Spelling::kPlain),
                     places[next].node);
      begun.push_back({c, c});
    }
    const CharacterSet others = ~(CharacterSet(begun) | ~plain);
    builder_.Empty(grammar::AddCharacter(builder_, place.node, others, Spelling::kPlain), other);
    const bool is_empty = &place == &places[0];  // as a bare name never is
    if (!place.is_name && (is_json || !is_empty)) close(place.node);
    if (builder_.is_full()) break;
  }
  builder_.Empty(grammar::AddCharacter(builder_, other, plain, Spelling::kPlain), other);
  close(other);
  return end;
}

NodeId JsonRules::AddDigits(NodeId from, int64_t least, int64_t most) {
  return builder_.Repeat(from, least, most, [this](NodeId begin) {
    const NodeId next = builder_.NewNode();
    builder_.Bytes(begin, '0', '9', next);
    return next;
  });
}

// Natural numbers of the same number of digits.
void JsonRules::AddSameLength(NodeId from, std::string_view least, std::string_view most,
                              NodeId to) {
  const auto digit = [](char c) { return static_cast<uint8_t>(c); };
  const auto step = [&](char first, char last) {
    const NodeId next = builder_.NewNode();
    builder_.Bytes(from, digit(first), digit(last), next);
    return next;
  };
  if (least.empty()) {
    builder_.Empty(from, to);
    return;
  }
  const std::string nines(least.size() - 1, '9');
  const std::string zeros(least.size() - 1, '0');
  if (least[0] == most[0]) {
    AddSameLength(step(least[0], least[0]), least.substr(1), most.substr(1), to);
    return;
  }
  char first = least[0];
  char last = most[0];
  if (least.substr(1) != zeros) {
    AddSameLength(step(first, first), least.substr(1), nines, to);
    ++first;
  }
  if (most.substr(1) != nines) {
    AddSameLength(step(last, last), zeros, most.substr(1), to);
    --last;
  }
  if (first > last) return;
  const auto n_more = static_cast<int64_t>(zeros.size());
  builder_.Empty(AddDigits(step(first, last), n_more, n_more), to);
}

// From `least` >= 0 to `most`, or as many as have 18 digits.
void JsonRules::AddNatural(NodeId from, int64_t least, std::optional<int64_t> most, NodeId to) {
  const std::string low = std::to_string(least);
  const std::string high =
      most.has_value() ? std::to_string(*most) : std::string(static_cast<size_t>(kMaxDigits), '9');
  for (size_t n = low.size(); n <= high.size(); ++n) {
    std::string shortest(n, '0');
    shortest[0] = '1';
    const std::string longest(n, '9');
    const std::string& begin = n == low.size() ? low : shortest;
    const std::string& end = n == high.size() ? high : longest;
    if (begin <= end) AddSameLength(from, begin, end, to);
  }
}

NodeId JsonRules::AddInteger(NodeId from, std::optional<int64_t> least,
                             std::optional<int64_t> most) {
  const NodeId end = builder_.NewNode();
  if (!most.has_value() || *most >= 0) {
    AddNatural(from, std::max<int64_t>(0, least.value_or(0)), most, end);
  }
  if (!least.has_value() || *least < 0) {
    const NodeId minus = builder_.Literal(from, "-");
    AddNatural(minus, most.has_value() && *most < 0 ? -*most : 1,
               least.has_value() ? std::optional(-*least) : std::nullopt, end);
  }
  return end;
}

RuleId JsonRules::Integer() {
  if (integer_.has_value()) return *integer_;
  integer_ = builder_.NewRule();
  builder_.Finish(AddInteger(builder_.start(*integer_), std::nullopt, std::nullopt));
  return *integer_;
}

// Behind the integer part: nothing or decimals, which may have to be zeros, or not all of them.
void JsonRules::AddDecimals(NodeId from, NodeId to, bool zeros_only, bool needs_non_zero) {
  if (!needs_non_zero) builder_.Empty(from, to);
  const NodeId point = builder_.Literal(from, ".");
  const char last = zeros_only ? '0' : '9';
  if (!needs_non_zero) {
    builder_.Empty(builder_.Repeat(point, 1, kMaxDigits,
                                   [&](NodeId begin) {
                                     const NodeId next = builder_.NewNode();
                                     builder_.Bytes(begin, '0', static_cast<uint8_t>(last), next);
                                     return next;
                                   }),
                   to);
    return;
  }
  const NodeId zeros = builder_.Repeat(point, 0, kMaxDigits,
                                       [&](NodeId begin) { return builder_.Literal(begin, "0"); });
  const NodeId non_zero = builder_.NewNode();
  builder_.Bytes(zeros, '1', '9', non_zero);
  builder_.Empty(AddDigits(non_zero, 0, kMaxDigits), to);
}

// low <= |x| <= high.
void JsonRules::AddMagnitude(NodeId from, const Magnitude& magnitude, NodeId to) {
  const auto& [low, high] = magnitude;
  const auto whole_part = [&](int64_t least, std::optional<int64_t> most) {
    const NodeId end = builder_.NewNode();
    AddNatural(from, least, most, end);
    return end;
  };
  if (high.has_value() && high->value == low.value) {
    if (high->is_exclusive || low.is_exclusive) return;
    AddDecimals(whole_part(low.value, low.value), to, /*zeros_only=*/true, false);
    return;
  }
  AddDecimals(whole_part(low.value, low.value), to, false, low.is_exclusive);
  if (!high.has_value()) {
    AddDecimals(whole_part(low.value + 1, std::nullopt), to, false, false);
    return;
  }
  if (low.value + 1 < high->value) {
    AddDecimals(whole_part(low.value + 1, high->value - 1), to, false, false);
  }
  if (!high->is_exclusive) {
    AddDecimals(whole_part(high->value, high->value), to, /*zeros_only=*/true, false);
  }
}

NodeId JsonRules::AddNumber(NodeId from, std::optional<Bound> low, std::optional<Bound> high) {
  const NodeId end = builder_.NewNode();
  const auto negated = [](const Bound& bound) { return Bound{-bound.value, bound.is_exclusive}; };
  if (!high.has_value() || high->value > 0 || (high->value == 0 && !high->is_exclusive)) {
    AddMagnitude(from, {.low = low.has_value() && low->value >= 0 ? *low : Bound{}, .high = high},
                 end);
  }
  if (!low.has_value() || low->value < 0) {
    AddMagnitude(builder_.Literal(from, "-"),
                 {.low = high.has_value() && high->value < 0 ? negated(*high) : Bound{0, true},
                  .high = low.has_value() ? std::optional(negated(*low)) : std::nullopt},
                 end);
  }
  return end;
}

RuleId JsonRules::Number() {
  if (number_.has_value()) return *number_;
  number_ = builder_.NewRule();
  const NodeId start = builder_.start(*number_);
  const NodeId magnitude = builder_.Literal(start, "-");
  builder_.Empty(start, magnitude);
  const NodeId mantissa = builder_.NewNode();
  AddMagnitude(magnitude, {}, mantissa);
  builder_.Finish(mantissa);
  const NodeId exponent = builder_.NewNode();
  for (const char c : {'e', 'E'}) {
    builder_.Bytes(mantissa, static_cast<uint8_t>(c), static_cast<uint8_t>(c), exponent);
  }
  const NodeId sign = builder_.NewNode();
  builder_.Empty(exponent, sign);
  for (const char c : {'+', '-'}) {
    builder_.Bytes(exponent, static_cast<uint8_t>(c), static_cast<uint8_t>(c), sign);
  }
  builder_.Finish(AddDigits(sign, 1, 2));
  return *number_;
}

RuleId JsonRules::Value() {
  if (value_.has_value()) return *value_;
  value_ = builder_.NewRule();
  const NodeId start = builder_.start(*value_);
  for (const RuleId rule : {String(), Number(), Object(), Array()}) {
    builder_.Finish(builder_.Call(start, rule));
  }
  builder_.Finish(builder_.OneOf(start, {"true", "false"}));
  builder_.Finish(AddNull(start));
  return *value_;
}

// Any number of members between brackets.
NodeId JsonRules::AddMembers(NodeId from, char open, char close, RuleId member) {
  const NodeId begin = AddSpace(builder_.Literal(from, {&open, 1}));
  const NodeId end = builder_.NewNode();
  builder_.Empty(begin, end);
  const NodeId more = builder_.Repeat(
      builder_.Call(begin, member), 0, ProgramBuilder::kNoLimit,
      [&](NodeId node) { return builder_.Call(AddSpace(builder_.Literal(node, ",")), member); });
  builder_.Empty(AddSpace(more), end);
  return builder_.Literal(end, {&close, 1});
}

RuleId JsonRules::Object() {
  if (object_.has_value()) return *object_;
  object_ = builder_.NewRule();
  const RuleId pair = builder_.NewRule();
  const NodeId name = AddOtherName(builder_.start(pair), {});
  builder_.Finish(builder_.Call(AddSpace(builder_.Literal(name, ":")), Value()));
  builder_.Finish(AddMembers(builder_.start(*object_), '{', '}', pair));
  return *object_;
}

RuleId JsonRules::Array() {
  if (array_.has_value()) return *array_;
  array_ = builder_.NewRule();
  builder_.Finish(AddMembers(builder_.start(*array_), '[', ']', Value()));
  return *array_;
}

}  // namespace nibble::grammar
