#include "grammar/program.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

namespace nibble::grammar {
namespace {

// Rules that `rule` may call before it reads a byte. No rule that is called matches nothing at all,
// so that what comes behind a call is not among them.
std::vector<RuleId> FirstCalls(const Program& program, RuleId rule) {
  std::vector<RuleId> calls;
  std::vector<NodeId> reached = {program.rules[rule]};
  std::unordered_set<NodeId> seen(reached.begin(), reached.end());
  for (size_t i = 0; i < reached.size(); ++i) {
    const Node& node = program.nodes[reached[i]];
    for (const CallEdge& call : node.calls) calls.push_back(call.rule);
    for (const NodeId target : node.empty) {
      if (seen.insert(target).second) reached.push_back(target);
    }
  }
  return calls;
}

bool CallsItselfFirst(const Program& program) {
  std::vector<std::vector<RuleId>> first_calls;
  first_calls.reserve(program.rules.size());
  for (size_t rule = 0; rule < program.rules.size(); ++rule) {
    first_calls.push_back(FirstCalls(program, static_cast<RuleId>(rule)));
  }
  // Rules all of whose first calls are cleared are cleared; a cycle never is.
  std::vector<int> n_waiting(first_calls.size());
  std::vector<std::vector<RuleId>> callers(first_calls.size());
  std::vector<RuleId> cleared;
  for (size_t rule = 0; rule < first_calls.size(); ++rule) {
    n_waiting[rule] = static_cast<int>(first_calls[rule].size());
    for (const RuleId called : first_calls[rule]) {
      callers[called].push_back(static_cast<RuleId>(rule));
    }
    if (n_waiting[rule] == 0) cleared.push_back(static_cast<RuleId>(rule));
  }
  for (size_t i = 0; i < cleared.size(); ++i) {
    for (const RuleId caller : callers[cleared[i]]) {
      if (--n_waiting[caller] == 0) cleared.push_back(caller);
    }
  }
  return cleared.size() < first_calls.size();
}

}  // namespace

RuleId ProgramBuilder::NewRule() {
  program_.rules.push_back(NewNode());
  return static_cast<RuleId>(program_.rules.size()) - 1;
}

NodeId ProgramBuilder::NewNode() {
  if (static_cast<int64_t>(program_.nodes.size()) >= kMaxNodes) {
    is_full_ = true;
    return 0;
  }
  program_.nodes.emplace_back();
  return static_cast<NodeId>(program_.nodes.size()) - 1;
}

void ProgramBuilder::Bytes(NodeId from, uint8_t first, uint8_t last, NodeId to) {
  program_.nodes[from].bytes.push_back({.first = first, .last = last, .target = to});
}

NodeId ProgramBuilder::Literal(NodeId from, std::string_view bytes) {
  for (const char c : bytes) {
    const NodeId next = NewNode();
    Bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), next);
    from = next;
  }
  return from;
}

NodeId ProgramBuilder::Call(NodeId from, RuleId rule) {
  const NodeId target = NewNode();
  program_.nodes[from].calls.push_back({.rule = rule, .target = target});
  return target;
}

NodeId ProgramBuilder::OneOf(NodeId from, const std::vector<std::string>& texts) {
  const NodeId end = NewNode();
  const NodeId root = NewNode();
  Empty(from, root);
  for (const std::string& text : texts) {
    NodeId node = root;
    for (const char c : text) {
      const auto byte = static_cast<uint8_t>(c);
      const std::vector<ByteEdge>& edges = program_.nodes[node].bytes;
      const auto known = std::ranges::find(edges, byte, &ByteEdge::first);
      if (known != edges.end()) {
        node = known->target;
        continue;
      }
      const NodeId next = NewNode();
      if (is_full_) return end;
      Bytes(node, byte, byte, next);
      node = next;
    }
    Empty(node, end);
  }
  return end;
}

NodeId ProgramBuilder::Repeat(NodeId from, int64_t least, int64_t most,
                              const std::function<NodeId(NodeId)>& body) {
  const NodeId end = NewNode();
  const int64_t n_copies = most == kNoLimit ? least : most;
  std::vector<NodeId> begins;
  for (int64_t i = 0; i < n_copies && !is_full_; ++i) {
    if (i >= least) Empty(from, end);
    const NodeId begin = NewNode();
    Empty(from, begin);
    begins.push_back(begin);
    from = body(begin);
  }
  if (is_full_) return end;
  // Copy i is followed by n_copies - i - 1 more, and least - i - 1 of these must come. While a
  // token meets neither end, it fares as in the first copy that has the same ends before it.
  begins.push_back(NewNode());
  Empty(from, begins.back());
  for (int64_t i = 1; i < n_copies; ++i) {
    const bool may_end = i >= least;
    const int64_t first = may_end ? least : 0;
    const int64_t n_bytes = may_end ? n_copies - i - 1 : least - i - 1;
    const NodeId n_nodes = begins[i + 1] - begins[i];
    if (first >= i || n_bytes <= 0 || begins[first + 1] - begins[first] != n_nodes) continue;
    for (NodeId k = 0; k < n_nodes; ++k) {
      program_.nodes[begins[i] + k].twin = {.node = begins[first] + k, .n_bytes = n_bytes};
    }
  }
  if (most == kNoLimit) {
    const NodeId loop = begins.back();
    Empty(body(loop), loop);
    Empty(loop, end);
  } else {
    Empty(begins.back(), end);
  }
  return end;
}

Result<Program> ProgramBuilder::Build() && {
  if (is_full_) return Fail("too large: it needs more than {} states", kMaxNodes);
  if (CallsItselfFirst(program_)) {
    return Fail("a reference leads to itself with nothing in between");
  }
  return std::move(program_);
}

}  // namespace nibble::grammar
