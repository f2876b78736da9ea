// The parts of JSON: strings, numbers within bounds, white space, any value.
//
// White space may stand where JSON has it behind "{", "[", ":" and ",", and before "}" and "]": one
// blank, or a line's end and its indentation; a model cannot get lost in it. Integers have at most
// 18 digits. Tested by grammar_test.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "grammar/program.h"

namespace nibble::grammar {

// An end of a range of numbers.
struct Bound {
  int64_t value = 0;
  bool is_exclusive = false;
};

class JsonRules {
 public:
  explicit JsonRules(ProgramBuilder& builder) : builder_(builder) {}

  // Rules, made when first asked for.
  RuleId String();
  RuleId Number();
  RuleId Integer();
  RuleId Value();
  RuleId Object();
  RuleId Array();

  NodeId AddSpace(NodeId from);  // or none
  NodeId AddString(NodeId from, int64_t least_characters, int64_t most_characters);
  // A string without escapes that is none of `names`.
  NodeId AddOtherName(NodeId from, const std::vector<std::string>& names);
  NodeId AddInteger(NodeId from, std::optional<int64_t> least, std::optional<int64_t> most);
  NodeId AddNumber(NodeId from, std::optional<Bound> low, std::optional<Bound> high);

 private:
  struct Magnitude {
    Bound low;
    std::optional<Bound> high;
  };

  NodeId AddCharacter(NodeId from);
  NodeId AddDigits(NodeId from, int64_t least, int64_t most);
  void AddDecimals(NodeId from, NodeId to, bool zeros_only, bool needs_non_zero);
  void AddNatural(NodeId from, int64_t least, std::optional<int64_t> most, NodeId to);
  void AddSameLength(NodeId from, std::string_view least, std::string_view most, NodeId to);
  void AddMagnitude(NodeId from, const Magnitude& magnitude, NodeId to);
  NodeId AddMembers(NodeId from, char open, char close, RuleId member);

  ProgramBuilder& builder_;
  std::optional<RuleId> space_;
  std::optional<RuleId> string_;
  std::optional<RuleId> number_;
  std::optional<RuleId> integer_;
  std::optional<RuleId> value_;
  std::optional<RuleId> object_;
  std::optional<RuleId> array_;
};

}  // namespace nibble::grammar
