#include "grammar/machine.h"

#include <algorithm>
#include <utility>

namespace nibble::grammar {

Machine::Machine(const Program& program) : program_(program) {
  stacks_.resize(2);  // kEnd and kBelow are no nodes
  StateOf({});        // kDead
}

StackId Machine::Push(NodeId node, StackId below) {
  const auto next_id = static_cast<StackId>(stacks_.size());
  const uint64_t key = static_cast<uint64_t>(node) << 32 | static_cast<uint32_t>(below);
  const auto [known, is_new] = stack_ids_.emplace(key, next_id);
  if (is_new) stacks_.push_back({.node = node, .below = below});
  return known->second;
}

StateId Machine::StateOf(std::vector<StackId> stacks) {
  const auto next_id = static_cast<StateId>(states_.size());
  const auto [known, is_new] = state_ids_.emplace(std::move(stacks), next_id);
  if (is_new) {
    states_.push_back(&known->first);
    tables_.emplace_back();
  }
  return known->second;
}

// Follows all that reads nothing: empty edges, calls, ends of rules.
StateId Machine::Close(std::vector<StackId> open) {
  ++n_closures_;
  std::vector<StackId> closed;
  const auto is_new = [this](StackId id) {
    seen_.resize(stacks_.size());
    return std::exchange(seen_[id], n_closures_) != n_closures_;
  };
  std::erase_if(open, [&](StackId id) { return !is_new(id); });
  const auto add = [&](StackId id) {
    if (is_new(id)) open.push_back(id);
  };
  while (!open.empty()) {
    const StackId id = open.back();
    open.pop_back();
    ++n_steps_;
    if (id == kEnd || id == kBelow) {
      closed.push_back(id);
      continue;
    }
    const Stack own = stacks_[id];
    const Node& node = program_.nodes[own.node];
    if (!node.bytes.empty()) closed.push_back(id);
    for (const NodeId target : node.empty) add(Push(target, own.below));
    for (const CallEdge& call : node.calls) {
      add(Push(program_.rules[call.rule], Push(call.target, own.below)));
    }
    if (node.is_final) add(own.below);
  }
  std::ranges::sort(closed);
  return StateOf(std::move(closed));
}

StateId Machine::Enter(NodeId node, StackId below) { return EnterStack(Push(node, below)); }

StateId Machine::EnterStack(StackId stack) {
  const auto known = entered_.find(stack);
  if (known != entered_.end()) return known->second;
  return entered_[stack] = Close({stack});
}

StateId Machine::MakeNext(StateId state, uint8_t byte) {
  std::vector<StackId> open;
  for (const StackId id : *states_[state]) {
    if (id == kEnd || id == kBelow) continue;
    const Stack own = stacks_[id];
    for (const ByteEdge& edge : program_.nodes[own.node].bytes) {
      ++n_steps_;
      if (edge.first <= byte && byte <= edge.last) open.push_back(Push(edge.target, own.below));
    }
  }
  const StateId next = open.empty() ? kDead : Close(std::move(open));
  std::unique_ptr<StateId[]>& table = tables_[state];
  if (table == nullptr) {
    table = std::make_unique<StateId[]>(256);
    std::fill_n(table.get(), 256, kUnknown);
  }
  return table[byte] = next;
}

bool Machine::Contains(StateId state, StackId stack) const {
  return std::ranges::binary_search(*states_[state], stack);
}

StateId Machine::CopyTo(Machine& other, StateId state) const {
  std::vector<StackId> copies;
  for (const StackId id : *states_[state]) {
    std::vector<NodeId> nodes;  // from the top
    StackId at = id;
    for (; at != kEnd && at != kBelow; at = stacks_[at].below) nodes.push_back(stacks_[at].node);
    StackId copy = at;
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) copy = other.Push(*node, copy);
    copies.push_back(copy);
  }
  std::ranges::sort(copies);
  return other.StateOf(std::move(copies));
}

}  // namespace nibble::grammar
