// The parts of JSON: strings, numbers within bounds, white space, any value; in JSON's own
// notation, or in that of Gemma 4's calls of tools.
//
// White space may stand where JSON has it behind "{", "[", ":" and ",", and before "}" and "]": one
// blank, or a line's end and its indentation; a model cannot get lost in it. Integers have at most
// 18 digits. Tested by grammar_test.cc.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "grammar/characters.h"
#include "grammar/program.h"

namespace nibble::grammar {

// An end of a range of numbers.
struct Bound {
  int64_t value = 0;
  bool is_exclusive = false;
};

enum class Notation {
  kJson,
  // As text/tool_call.h reads it: strings between marks (vocabulary.h) and without escapes, names
  // bare and in alphabetical order, no white space.
  kToolCall,
};

class JsonRules {
 public:
  JsonRules(ProgramBuilder& builder, Notation notation) : builder_(builder), notation_(notation) {}

  Notation notation() const { return notation_; }
  // Of a string's characters.
  Spelling spelling() const {
    return notation_ == Notation::kJson ? Spelling::kJson : Spelling::kPlain;
  }
  // How a value is written.
  std::string TextOf(const nlohmann::ordered_json& value) const;
  // How the name of a member is written.
  std::string NameOf(const std::string& name) const;

  // Rules, made when first asked for.
  RuleId String();
  RuleId Number();
  RuleId Integer();
  RuleId Value();
  RuleId Object();
  RuleId Array();

  NodeId AddSpace(NodeId from);  // or none
  NodeId AddNull(NodeId from);
  NodeId AddQuote(NodeId from);
  NodeId AddString(NodeId from, int64_t least_characters, int64_t most_characters);
  // The name of a member that is none of `names`; without escapes if there are any.
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
  const Notation notation_;
  std::optional<RuleId> space_;
  std::optional<RuleId> string_;
  std::optional<RuleId> number_;
  std::optional<RuleId> integer_;
  std::optional<RuleId> value_;
  std::optional<RuleId> object_;
  std::optional<RuleId> array_;
};

}  // namespace nibble::grammar
