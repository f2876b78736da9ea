#include "grammar/regex.h"

#include <array>
#include <cctype>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace nibble::grammar {
namespace {

constexpr int kMaxDepth = 100;  // of groups
constexpr int64_t kMaxRepeats = 100'000;

// A parsed expression.
struct Part {
  enum class Kind { kCharacter, kSequence, kChoice, kRepeat } kind = Kind::kSequence;
  CharacterSet set;         // kCharacter
  std::vector<Part> parts;  // of a sequence or choice; one that is repeated
  int64_t least = 0;
  int64_t most = ProgramBuilder::kNoLimit;
};

CharacterSet Digits() { return CharacterSet({{'0', '9'}}); }
CharacterSet WordCharacters() {
  return CharacterSet({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
}
CharacterSet Spaces() { return CharacterSet({{'\t', '\r'}, {' ', ' '}}); }
// What is a space in no dialect.
CharacterSet NoSpaces() {
  return ~(Spaces() | CharacterSet({{0x1C, 0x1F},
                                    {0x85, 0x85},
                                    {0xA0, 0xA0},
                                    {0x1680, 0x1680},
                                    {0x180E, 0x180E},
                                    {0x2000, 0x200B},
                                    {0x2028, 0x2029},
                                    {0x202F, 0x202F},
                                    {0x205F, 0x205F},
                                    {0x3000, 0x3000},
                                    {0xFEFF, 0xFEFF}}));
}
// What "." matches in every dialect.
CharacterSet NoLineEnds() {
  return ~CharacterSet({{'\n', '\n'}, {'\r', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}});
}

class Parser {
 public:
  Parser(std::string_view pattern, Matching matching) : pattern_(pattern), matching_(matching) {}

  Result<Part> Parse() {
    NIBBLE_ASSIGN_OR_RETURN(Part choice, ParseChoice(0));
    if (!AtEnd()) return Error("unmatched ')'");
    return choice;
  }

 private:
  bool AtEnd() const { return at_ == pattern_.size(); }
  bool Next(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool Take(std::string_view text) {
    if (!Next(text)) return false;
    at_ += text.size();
    return true;
  }
  std::unexpected<nibble::Error> Error(std::string_view what) const {
    return Fail("at character {} of the expression: {}", at_ + 1, what);
  }

  Result<Part> ParseChoice(int depth) {
    if (depth > kMaxDepth) return Error("groups too deep");
    Part choice{.kind = Part::Kind::kChoice, .set = {}, .parts = {}};
    do {
      NIBBLE_ASSIGN_OR_RETURN(Part sequence, ParseSequence(depth));
      choice.parts.push_back(std::move(sequence));
    } while (Take("|"));
    return choice;
  }

  // ^ and $ count at the ends of the outermost alternatives alone.
  Result<Part> ParseSequence(int depth) {
    Part sequence;
    const bool is_outermost = depth == 0;
    const bool begins = Take("^");
    if (begins && !is_outermost) return Error("^ within a group is not supported");
    bool ends = false;
    while (!AtEnd() && !Next("|") && !Next(")")) {
      if (Take("$")) {
        if (!is_outermost || !(AtEnd() || Next("|"))) {
          return Error("$ but at the end is not supported");
        }
        ends = true;
        break;
      }
      NIBBLE_ASSIGN_OR_RETURN(Part atom, ParseAtom(depth));
      NIBBLE_ASSIGN_OR_RETURN(Part repeated, ParseQuantifiers(std::move(atom)));
      sequence.parts.push_back(std::move(repeated));
    }
    if (is_outermost && matching_ == Matching::kSomewhere) {
      if (!begins) sequence.parts.insert(sequence.parts.begin(), Anything());
      if (!ends) sequence.parts.push_back(Anything());
    }
    return sequence;
  }

  static Part Character(CharacterSet set) {
    return {.kind = Part::Kind::kCharacter, .set = std::move(set), .parts = {}};
  }

  static Part Anything() {
    Part part{.kind = Part::Kind::kRepeat, .set = {}, .parts = {}};
    part.parts.push_back(Character(CharacterSet::All()));
    return part;
  }

  Result<Part> ParseAtom(int depth) {
    if (Take("(")) {
      if (Take("?") && !Take(":")) {
        if (!Take("P<") && !(Next("<") && !Next("<=") && !Next("<!") && Take("<"))) {
          return Error("look-around and flags are not supported");
        }
        const size_t end = pattern_.find('>', at_);
        if (end == std::string_view::npos) return Error("a group's name without its '>'");
        at_ = end + 1;
      }
      NIBBLE_ASSIGN_OR_RETURN(Part group, ParseChoice(depth + 1));
      if (!Take(")")) return Error("a group without its ')'");
      return group;
    }
    if (Take("[")) {
      NIBBLE_ASSIGN_OR_RETURN(CharacterSet set, ParseClass());
      if (set.empty()) return Error("a class that matches nothing");
      return Character(std::move(set));
    }
    if (Take(".")) return Character(NoLineEnds());
    if (Next("*") || Next("+") || Next("?") || Next("{")) return Error("nothing to repeat");
    if (Take("\\")) {
      NIBBLE_ASSIGN_OR_RETURN(CharacterSet set, ParseEscape(/*in_class=*/false));
      return Character(std::move(set));
    }
    const char32_t c = TakeCharacter();
    return Character(CharacterSet({{c, c}}));
  }

  Result<Part> ParseQuantifiers(Part atom) {
    int64_t least = 0;
    int64_t most = ProgramBuilder::kNoLimit;
    if (Take("?")) {
      most = 1;
    } else if (Take("+")) {
      least = 1;
    } else if (Take("{")) {
      const std::optional<int64_t> first = TakeNumber();
      if (!first.has_value()) return Error("expected a number in {}");
      least = *first;
      most = least;
      if (Take(",")) most = TakeNumber().value_or(ProgramBuilder::kNoLimit);
      if (!Take("}")) return Error("a '{' without its '}'");
      if (most != ProgramBuilder::kNoLimit && most < least) return Error("{m,n} with n below m");
      if (least > kMaxRepeats || most > kMaxRepeats) return Error("too many repetitions");
    } else if (!Take("*")) {
      return atom;
    }
    Take("?");  // lazy: matches the same texts
    if (Next("*") || Next("+") || Next("?") || Next("{")) {
      return Error("a quantifier behind a quantifier is not supported");
    }
    Part repeat{.kind = Part::Kind::kRepeat, .set = {}, .parts = {}, .least = least, .most = most};
    repeat.parts.push_back(std::move(atom));
    return repeat;
  }

  std::optional<int64_t> TakeNumber() {
    int64_t number = 0;
    const size_t begin = at_;
    for (; !AtEnd() && std::isdigit(static_cast<unsigned char>(pattern_[at_])) != 0; ++at_) {
      number = std::min(number * 10 + (pattern_[at_] - '0'), kMaxRepeats + 1);
    }
    return at_ == begin ? std::nullopt : std::optional(number);
  }

  char32_t TakeCharacter() {
    const text::Character character = text::CharacterAt(pattern_, at_);
    at_ += character.n_bytes;
    return character.code_point;
  }

  // Behind "[".
  Result<CharacterSet> ParseClass() {
    const bool negated = Take("^");
    CharacterSet set;
    for (bool is_first = true; is_first || !Next("]"); is_first = false) {
      if (AtEnd()) return Error("a '[' without its ']'");
      if (is_first && Take("]")) {
        set = set | CharacterSet({{']', ']'}});
        continue;
      }
      NIBBLE_ASSIGN_OR_RETURN(const CharacterSet low, ParseClassItem());
      const bool is_range = Next("-") && !Next("-]");
      if (!is_range) {
        set = set | low;
        continue;
      }
      Take("-");
      if (AtEnd()) return Error("a '[' without its ']'");
      NIBBLE_ASSIGN_OR_RETURN(const CharacterSet high, ParseClassItem());
      const auto is_one = [](const CharacterSet& s) {
        return s.ranges().size() == 1 && s.ranges()[0].first == s.ranges()[0].last;
      };
      if (!is_one(low) || !is_one(high) || high.ranges()[0].first < low.ranges()[0].first) {
        return Error("a range that is none");
      }
      set = set | CharacterSet({{low.ranges()[0].first, high.ranges()[0].first}});
    }
    Take("]");
    return negated ? ~set : set;
  }

  Result<CharacterSet> ParseClassItem() {
    if (Take("\\")) return ParseEscape(/*in_class=*/true);
    const char32_t c = TakeCharacter();
    return CharacterSet({{c, c}});
  }

  // Behind "\".
  Result<CharacterSet> ParseEscape(bool in_class) {
    if (AtEnd()) return Error("nothing behind '\\'");
    const char32_t c = TakeCharacter();
    const auto one = [](char32_t code) { return CharacterSet({{code, code}}); };
    switch (c) {
      case 'd':
        return Digits();
      case 'D':
        return ~Digits();
      case 'w':
        return WordCharacters();
      case 'W':
        return ~WordCharacters();
      case 's':
        return Spaces();
      case 'S':
        return NoSpaces();
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'x':
        return ParseHex(2);
      case 'u':
        return ParseHex(4);
      default:
        break;
    }
    if (c == 'b' && in_class) return one('\b');
    if (c < 0x80 && std::isalnum(static_cast<int>(c)) != 0) {
      return Error("this escape is not supported");
    }
    return one(c);
  }

  Result<CharacterSet> ParseHex(int n_digits) {
    char32_t code = 0;
    for (int i = 0; i < n_digits; ++i, ++at_) {
      if (AtEnd() || std::isxdigit(static_cast<unsigned char>(pattern_[at_])) == 0) {
        return Error("expected a hexadecimal digit");
      }
      const char digit = pattern_[at_];
      code =
          code * 16 + static_cast<char32_t>(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
    }
    CharacterSet set({{code, code}});
    if (set.empty()) return Error("half a surrogate pair is not supported");
    return set;
  }

  std::string_view pattern_;
  Matching matching_;
  size_t at_ = 0;
};

// NOLINTNEXTLINE(misc-no-recursion): as deep as the parser lets groups be.
NodeId Add(ProgramBuilder& builder, NodeId from, const Part& part, Spelling spelling) {
  switch (part.kind) {
    case Part::Kind::kCharacter:
      return AddCharacter(builder, from, part.set, spelling);
    case Part::Kind::kSequence:
      for (const Part& own : part.parts) {
        if (builder.is_full()) break;
        from = Add(builder, from, own, spelling);
      }
      return from;
    case Part::Kind::kChoice: {
      if (part.parts.size() == 1) return Add(builder, from, part.parts[0], spelling);
      const NodeId end = builder.NewNode();
      for (const Part& own : part.parts) {
        const NodeId begin = builder.NewNode();
        if (builder.is_full()) break;
        builder.Empty(from, begin);
        builder.Empty(Add(builder, begin, own, spelling), end);
      }
      return end;
    }
    case Part::Kind::kRepeat:
      return builder.Repeat(from, part.least, part.most, [&](NodeId begin) {
        return Add(builder, begin, part.parts[0], spelling);
      });
  }
  return from;
}

}  // namespace

Result<NodeId> AddRegex(ProgramBuilder& builder, NodeId from, std::string_view pattern,
                        Matching matching, Spelling spelling) {
  NIBBLE_ASSIGN_OR_RETURN(const Part part, Parser(pattern, matching).Parse());
  return Add(builder, from, part, spelling);
}

}  // namespace nibble::grammar
