#include "grammar/rule_masks.h"

#include <algorithm>
#include <iterator>

namespace nibble::grammar {
namespace {

constexpr size_t kMaxRuleMasks = 256;  // of 32 kilobytes
constexpr size_t kMaxWarm = 100;
constexpr int64_t kMaxMachineStates = 20'000;  // of a kilobyte

}  // namespace

std::shared_ptr<const RuleMask> RuleMasks::MaskOf(NodeId node, int64_t& work) {
  const std::lock_guard lock(mutex_);
  if (masks_.size() > kMaxRuleMasks) masks_.clear();
  if (machine_->n_states() > kMaxMachineStates) machine_ = std::make_unique<Machine>(program_);
  return Find(node, work);
}

void RuleMasks::WarmUp(int64_t work) {
  constexpr int kManyBytes = 24;  // more than hexadecimal digits are
  for (size_t node = 0; node < program_.nodes.size() && masks_.size() < kMaxWarm && work > 0;
       ++node) {
    int n_bytes = 0;
    for (const ByteEdge& edge : program_.nodes[node].bytes) {
      if (edge.first < 0x80) n_bytes += std::min<int>(edge.last, 0x7F) - edge.first + 1;
    }
    const bool has_twin = program_.nodes[node].twin.n_bytes >= Vocabulary::kMaxShort / 2;
    if (n_bytes >= kManyBytes && !has_twin) MaskOf(static_cast<NodeId>(node), work);
  }
}

// NOLINTNEXTLINE(misc-no-recursion): a twin's twin comes from an outer repetition, of few.
std::shared_ptr<const RuleMask> RuleMasks::Find(NodeId node, int64_t& work) {
  const auto known = masks_.find(node);
  if (known != masks_.end()) return known->second;
  const std::span<const Vocabulary::TreeNode> tree = vocabulary_.tree();
  const Twin& twin = program_.nodes[node].twin;
  const int64_t n_alike = std::min(twin.n_bytes, Vocabulary::kMaxShort);
  auto mask = std::make_shared<RuleMask>();
  mask->words.resize(vocabulary_.n_words());
  if (n_alike > 0) {
    const std::shared_ptr<const RuleMask> other = Find(twin.node, work);
    if (other == nullptr) return nullptr;
    const std::span<const uint64_t> alike = vocabulary_.UpTo(n_alike);
    for (size_t i = 0; i < alike.size(); ++i) mask->words[i] = other->words[i] & alike[i];
    std::ranges::copy_if(other->exits, std::back_inserter(mask->exits),
                         [&](uint32_t exit) { return tree[exit].depth <= n_alike; });
  }
  const auto accept = [&](uint32_t i, StateId state) {
    if (tree[i].depth <= n_alike) return;
    vocabulary_.AddTokens(i, mask->words);
    if (tree[i].end > i + 1 && machine_->Contains(state, kBelow)) mask->exits.push_back(i);
  };
  if (!Walk(*machine_, vocabulary_, machine_->Enter(node, kBelow), 0,
            static_cast<uint32_t>(tree.size()), n_alike, work, accept)) {
    return nullptr;
  }
  masks_.emplace(node, mask);
  return mask;
}

}  // namespace nibble::grammar
