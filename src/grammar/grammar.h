// Structured output: what a request's answer must look like, and which tokens may come next.
//
// A grammar's program runs over bytes; a walk through the vocabulary's tree tells which tokens it
// accepts. What a token does within the rule on top of the stack is the same wherever that rule was
// called from, so it is worked out once for each node and kept with the grammar: when the grammar
// is made for the nodes that cost most, else when first needed. Only tokens that end that rule and
// go on are looked at again, and a state that comes back costs nothing. Costs are bounded: the
// program's size, and the work for a mask, behind which a grammar is refused or, if it happens in
// mid-answer, allows no further token. Tested by grammar_test.cc, fuzz/grammar_fuzz.cc and
// tests/interop/test_grammar.py.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/token_constraint.h"
#include "grammar/vocabulary.h"

namespace nibble::grammar {

struct Program;
class RuleMasks;

// Immutable but for what it remembers, which a lock guards: to be shared by requests and threads.
class Grammar {
 public:
  // Errors are one line: what in the schema, expression or list is wrong, unsupported or too large.
  // Properties are written in the order of the schema's text (json_schema.h).
  static Result<std::shared_ptr<const Grammar>> OfJsonSchema(
      std::string_view schema, std::shared_ptr<const Vocabulary> vocabulary);
  // Any JSON object.
  static Result<std::shared_ptr<const Grammar>> OfJsonObject(
      std::shared_ptr<const Vocabulary> vocabulary);
  // The whole answer matches the expression (regex.h).
  static Result<std::shared_ptr<const Grammar>> OfRegex(
      std::string_view expression, std::shared_ptr<const Vocabulary> vocabulary);
  // The answer is one of these.
  static Result<std::shared_ptr<const Grammar>> OfChoice(
      const std::vector<std::string>& choices, std::shared_ptr<const Vocabulary> vocabulary);
  // The answer is one call of one of the tools, or as many as the model likes (tool_calls.h).
  static Result<std::shared_ptr<const Grammar>> OfToolCalls(
      std::string_view tools, bool allows_several, std::shared_ptr<const Vocabulary> vocabulary);

  Grammar(Program program, std::shared_ptr<const Vocabulary> vocabulary);
  ~Grammar();

  // For one request. `grammar` is kept.
  static std::shared_ptr<TokenConstraint> NewConstraint(std::shared_ptr<const Grammar> grammar);
  // Whether the text as a whole is an answer.
  bool Accepts(std::string_view text) const;

  const Program& program() const { return *program_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  RuleMasks& masks() const { return *masks_; }
  // What the masks of all requests have cost so far, in the steps of rule_masks.h; not what was
  // worked out when the grammar was made.
  int64_t n_mask_steps() const { return n_mask_steps_; }
  void CountMaskSteps(int64_t n_steps) const { n_mask_steps_ += n_steps; }

 private:
  static Result<std::shared_ptr<const Grammar>> Checked(
      Result<Program> program, std::shared_ptr<const Vocabulary> vocabulary);

  std::unique_ptr<const Program> program_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::unique_ptr<RuleMasks> masks_;
  mutable std::atomic<int64_t> n_mask_steps_ = 0;
};

}  // namespace nibble::grammar
