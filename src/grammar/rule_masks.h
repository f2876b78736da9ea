// Which tokens a node accepts within its own rule, whatever stands below it on the stack. Worked
// out when first asked for, kept within a bound. Thread-safe. Tested by grammar_test.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/machine.h"
#include "grammar/vocabulary.h"

namespace nibble::grammar {

// What a mask may cost, in nodes of the tree, stacks and edges: some tens of milliseconds.
inline constexpr int64_t kMaxWork = 8'000'000;

// Walks the tree's nodes [begin, end), which lie behind `state`, and calls accept(index of the tree
// node, state behind it) for each that is reached, but for parts no deeper than min_depth. Takes
// what it costs off `work`. false: there was too little of it.
template <typename Accept>
bool Walk(Machine& machine, const Vocabulary& vocabulary, StateId state, uint32_t begin,
          uint32_t end, int64_t min_depth, int64_t& work, const Accept& accept) {
  const std::span<const Vocabulary::TreeNode> tree = vocabulary.tree();
  if (begin == end) return true;
  const size_t base = tree[begin].depth;  // of the nodes right behind `state`
  const int64_t n_before = machine.n_steps();
  std::vector<StateId> states = {state};  // by depth from there
  int64_t n_visited = 0;
  const auto n_spent = [&] { return n_visited + machine.n_steps() - n_before; };
  for (uint32_t i = begin; i < end && n_spent() <= work; ++n_visited) {
    const Vocabulary::TreeNode& node = tree[i];
    const size_t depth = node.depth - base;
    const StateId next = node.deepest <= min_depth ? kDead : machine.Next(states[depth], node.byte);
    if (next == kDead) {
      i = node.end;
      continue;
    }
    if (states.size() < depth + 2) states.resize(depth + 2);
    states[depth + 1] = next;
    accept(i, next);
    ++i;
  }
  work -= n_spent();
  return work >= 0;
}

struct RuleMask {
  std::vector<uint64_t> words;  // bits of the tokens accepted without a look at what is below
  std::vector<uint32_t> exits;  // tree nodes at which the rule may end, with more behind them
};

class RuleMasks {
 public:
  RuleMasks(const Program& program, const Vocabulary& vocabulary)
      : program_(program), vocabulary_(vocabulary), machine_(std::make_unique<Machine>(program)) {}

  // Null: too much work.
  std::shared_ptr<const RuleMask> MaskOf(NodeId node, int64_t& work);
  // Works out beforehand those that cost most, as far as `work` goes: of nodes that read many
  // characters and have no twin to learn from.
  void WarmUp(int64_t work);

 private:
  std::shared_ptr<const RuleMask> Find(NodeId node, int64_t& work);

  const Program& program_;
  const Vocabulary& vocabulary_;
  std::mutex mutex_;
  std::unique_ptr<Machine> machine_;
  std::unordered_map<NodeId, std::shared_ptr<const RuleMask>> masks_;
};

}  // namespace nibble::grammar
