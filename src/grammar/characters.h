// Sets of Unicode characters, and their UTF-8 (or their spelling in a JSON string) as parts of a
// program. Tested by grammar_test.cc.
#pragma once

#include <vector>

#include "grammar/program.h"

namespace nibble::grammar {

struct CharacterRange {
  char32_t first = 0;
  char32_t last = 0;
};

// Sorted ranges that neither touch nor overlap; surrogates are never among them.
class CharacterSet {
 public:
  CharacterSet() = default;
  explicit CharacterSet(std::vector<CharacterRange> ranges);
  static CharacterSet All();

  CharacterSet operator~() const;
  CharacterSet operator|(const CharacterSet& other) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<CharacterRange>& ranges() const { return ranges_; }

 private:
  std::vector<CharacterRange> ranges_;
};

enum class Spelling {
  kPlain,  // UTF-8
  kJson,   // the same, but quote, backslash and control characters by their short or \u00xx escape
};

// One character of the set.
NodeId AddCharacter(ProgramBuilder& builder, NodeId from, const CharacterSet& set,
                    Spelling spelling);

}  // namespace nibble::grammar
