// Runs a program over bytes: a pushdown automaton whose states are made when they are first met.
//
// A stack is a node on top of the stack to go on with when its rule ends; a state is the set of all
// stacks that the bytes so far can lead to. Stacks and states are numbered, and each state knows
// where a byte leads from it once that was asked for, so that a second walk costs a table look-up a
// byte. Not thread-safe. Tested by grammar_test.cc.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/program.h"

namespace nibble::grammar {

using StackId = int32_t;
using StateId = int32_t;

inline constexpr StateId kDead = 0;   // no stack
inline constexpr StackId kEnd = 0;    // the whole has ended
inline constexpr StackId kBelow = 1;  // a rule looked at alone has ended

class Machine {
 public:
  struct Stack {
    NodeId node = 0;
    StackId below = kEnd;
  };

  // `program` must outlive it.
  explicit Machine(const Program& program);

  // Where a node leads on top of a stack.
  StateId Enter(NodeId node, StackId below);
  // Where a stack leads to.
  StateId EnterStack(StackId stack);
  StateId Next(StateId state, uint8_t byte) {
    const StateId* table = tables_[state].get();
    if (table != nullptr && table[byte] != kUnknown) return table[byte];
    return MakeNext(state, byte);
  }
  // Its stacks: nodes that read a byte, kEnd or kBelow; ascending.
  std::span<const StackId> stacks(StateId state) const { return *states_[state]; }
  bool Contains(StateId state, StackId stack) const;
  const Stack& stack(StackId id) const { return stacks_[id]; }

  // What was worked so far, in stacks and edges looked at.
  int64_t n_steps() const { return n_steps_; }
  int64_t n_states() const { return static_cast<int64_t>(states_.size()); }
  // The same state in another machine of the program.
  StateId CopyTo(Machine& other, StateId state) const;

 private:
  static constexpr StateId kUnknown = -1;

  StackId Push(NodeId node, StackId below);
  StateId MakeNext(StateId state, uint8_t byte);
  StateId Close(std::vector<StackId> open);
  StateId StateOf(std::vector<StackId> stacks);

  const Program& program_;
  std::vector<Stack> stacks_;
  std::unordered_map<uint64_t, StackId> stack_ids_;
  std::map<std::vector<StackId>, StateId> state_ids_;
  std::vector<const std::vector<StackId>*> states_;  // keys of state_ids_
  std::vector<std::unique_ptr<StateId[]>> tables_;   // [256] each, once needed
  std::unordered_map<StackId, StateId> entered_;
  std::vector<int64_t> seen_;  // by stack: the last closure that met it
  int64_t n_closures_ = 0;
  int64_t n_steps_ = 0;
};

}  // namespace nibble::grammar
