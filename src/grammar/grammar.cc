#include "grammar/grammar.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "grammar/json_rules.h"
#include "grammar/json_schema.h"
#include "grammar/machine.h"
#include "grammar/regex.h"
#include "grammar/rule_masks.h"
#include "grammar/tool_calls.h"

namespace nibble::grammar {
namespace {

constexpr int64_t kMaxStates = 20'000;  // of a constraint, a kilobyte each
constexpr size_t kMaxMasks = 64;        // that it keeps
constexpr size_t kMaxStacksApart = 16;  // more are walked with together

using Words = std::vector<uint64_t>;

class Constraint : public TokenConstraint {
 public:
  explicit Constraint(std::shared_ptr<const Grammar> grammar)
      : grammar_(std::move(grammar)),
        machine_(std::make_unique<Machine>(grammar_->program())),
        state_(machine_->Enter(grammar_->program().rules[0], kEnd)) {}

  void FillMask(std::span<uint64_t> mask) override {
    std::ranges::fill(mask, 0);
    const Words& own = MaskOf(state_);
    std::copy_n(own.begin(), std::min(own.size(), mask.size()), mask.begin());
  }

  void Accept(int32_t id) override {
    for (const char c : grammar_->vocabulary().BytesOf(id)) {
      state_ = machine_->Next(state_, static_cast<uint8_t>(c));
    }
    CHECK(state_ != kDead);  // the mask allowed it
    if (machine_->n_states() <= kMaxStates) return;
    auto fresh = std::make_unique<Machine>(grammar_->program());
    state_ = machine_->CopyTo(*fresh, state_);
    machine_ = std::move(fresh);
    masks_.clear();
  }

  bool is_complete() const override { return machine_->Contains(state_, kEnd); }

 private:
  const Words& MaskOf(StateId state) {
    const auto known = masks_.find(state);
    if (known != masks_.end()) return known->second;
    if (masks_.size() >= kMaxMasks) masks_.clear();
    Words& words = masks_[state];
    words.resize(grammar_->vocabulary().n_words());
    int64_t work = kMaxWork;
    if (!Fill(state, words, work)) std::ranges::fill(words, 0);
    grammar_->CountMaskSteps(kMaxWork - work);
    return words;
  }

  // false: too much work.
  bool Fill(StateId state, Words& words, int64_t& work) {
    const Vocabulary& vocabulary = grammar_->vocabulary();
    const std::span<const Vocabulary::TreeNode> tree = vocabulary.tree();
    const auto accept = [&](uint32_t i, StateId) { vocabulary.AddTokens(i, words); };
    const std::span<const StackId> open = machine_->stacks(state);
    if (open.size() > kMaxStacksApart) {
      return Walk(*machine_, vocabulary, state, 0, static_cast<uint32_t>(tree.size()), 0, work,
                  accept);
    }
    for (const StackId id : std::vector<StackId>(open.begin(), open.end())) {
      if (id == kEnd) continue;
      const Machine::Stack stack = machine_->stack(id);
      const std::shared_ptr<const RuleMask> mask = grammar_->masks().MaskOf(stack.node, work);
      if (mask == nullptr) return false;
      for (size_t i = 0; i < words.size(); ++i) words[i] |= mask->words[i];
      if (mask->exits.empty() || stack.below == kEnd) continue;
      const StateId below = machine_->EnterStack(stack.below);
      for (const uint32_t exit : mask->exits) {
        if (!Walk(*machine_, vocabulary, below, exit + 1, tree[exit].end, 0, work, accept)) {
          return false;
        }
      }
    }
    return true;
  }

  std::shared_ptr<const Grammar> grammar_;
  std::unique_ptr<Machine> machine_;
  StateId state_;
  std::unordered_map<StateId, Words> masks_;
};

}  // namespace

Grammar::Grammar(Program program, std::shared_ptr<const Vocabulary> vocabulary)
    : program_(std::make_unique<const Program>(std::move(program))),
      vocabulary_(std::move(vocabulary)),
      masks_(std::make_unique<RuleMasks>(*program_, *vocabulary_)) {}

Grammar::~Grammar() = default;

std::shared_ptr<TokenConstraint> Grammar::NewConstraint(std::shared_ptr<const Grammar> grammar) {
  return std::make_shared<Constraint>(std::move(grammar));
}

bool Grammar::Accepts(std::string_view text) const {
  Machine machine(*program_);
  StateId state = machine.Enter(program_->rules[0], kEnd);
  for (const char c : text) state = machine.Next(state, static_cast<uint8_t>(c));
  return machine.Contains(state, kEnd);
}

// The first mask shows whether masks can be had, and warms what all requests need.
Result<std::shared_ptr<const Grammar>> Grammar::Checked(
    Result<Program> program, std::shared_ptr<const Vocabulary> vocabulary) {
  NIBBLE_RETURN_IF_ERROR(program);
  auto grammar = std::make_shared<const Grammar>(*std::move(program), std::move(vocabulary));
  Words mask(grammar->vocabulary().n_words());
  const std::shared_ptr<TokenConstraint> constraint = NewConstraint(grammar);
  constraint->FillMask(mask);
  const bool is_empty = std::ranges::all_of(mask, [](uint64_t word) { return word == 0; });
  if (is_empty && !constraint->is_complete()) {
    return Fail("too large: its first token takes more than {} steps to find", kMaxWork);
  }
  grammar->masks().WarmUp(kMaxWork);
  return grammar;
}

Result<std::shared_ptr<const Grammar>> Grammar::OfJsonSchema(
    std::string_view schema, std::shared_ptr<const Vocabulary> vocabulary) {
  return Checked(CompileJsonSchema(schema), std::move(vocabulary));
}

Result<std::shared_ptr<const Grammar>> Grammar::OfJsonObject(
    std::shared_ptr<const Vocabulary> vocabulary) {
  ProgramBuilder builder;
  const RuleId whole = builder.NewRule();
  builder.Finish(builder.Call(builder.start(whole), JsonRules(builder, Notation::kJson).Object()));
  return Checked(std::move(builder).Build(), std::move(vocabulary));
}

Result<std::shared_ptr<const Grammar>> Grammar::OfRegex(
    std::string_view expression, std::shared_ptr<const Vocabulary> vocabulary) {
  ProgramBuilder builder;
  const RuleId whole = builder.NewRule();
  const auto end =
      AddRegex(builder, builder.start(whole), expression, Matching::kWhole, Spelling::kPlain);
  if (!end.has_value()) return Fail("regex: {}", end.error().message);
  builder.Finish(*end);
  auto program = std::move(builder).Build();
  if (!program.has_value()) return Fail("regex: {}", program.error().message);
  return Checked(std::move(program), std::move(vocabulary));
}

Result<std::shared_ptr<const Grammar>> Grammar::OfChoice(
    const std::vector<std::string>& choices, std::shared_ptr<const Vocabulary> vocabulary) {
  if (choices.empty()) return Fail("choice: expected at least one");
  ProgramBuilder builder;
  const RuleId whole = builder.NewRule();
  builder.Finish(builder.OneOf(builder.start(whole), choices));
  auto program = std::move(builder).Build();
  if (!program.has_value()) return Fail("choice: {}", program.error().message);
  return Checked(std::move(program), std::move(vocabulary));
}

Result<std::shared_ptr<const Grammar>> Grammar::OfToolCalls(
    std::string_view tools, bool allows_several, std::shared_ptr<const Vocabulary> vocabulary) {
  if (!vocabulary->has_call_marks()) return Fail("this model's tokenizer has no marks for calls");
  return Checked(CompileToolCalls(tools, allows_several), std::move(vocabulary));
}

}  // namespace nibble::grammar
