// A grammar over bytes: rules, each a nondeterministic automaton whose edges read a byte or call a
// rule. A rule that is called reads at least one byte. Built node by node, within a limit that
// bounds what a hostile schema can cost.
//
// Functions that add a part take the node that it begins at and return the one that it ends at.
// Tested by grammar_test.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace nibble::grammar {

using NodeId = int32_t;
using RuleId = int32_t;

struct ByteEdge {
  uint8_t first = 0;  // of the range [first, last]
  uint8_t last = 0;
  NodeId target = 0;
};

struct CallEdge {
  RuleId rule = 0;
  NodeId target = 0;  // where to go on after it
};

// Tokens of up to n_bytes fare at this node as at `node`: copies of one part in a row.
struct Twin {
  NodeId node = 0;
  int64_t n_bytes = 0;
};

struct Node {
  std::vector<ByteEdge> bytes;
  std::vector<CallEdge> calls;
  std::vector<NodeId> empty;  // targets of edges that read nothing
  bool is_final = false;      // its rule may end here
  Twin twin;                  // n_bytes 0: none
};

struct Program {
  std::vector<Node> nodes;
  std::vector<NodeId> rules;  // where they begin; rule 0 is the whole
};

class ProgramBuilder {
 public:
  static constexpr int64_t kMaxNodes = 200'000;
  static constexpr int64_t kNoLimit = -1;

  RuleId NewRule();  // to be filled from start(rule) on, and ended by Finish()
  NodeId start(RuleId rule) const { return program_.rules[rule]; }
  void Finish(NodeId last) { program_.nodes[last].is_final = true; }

  NodeId NewNode();
  void Empty(NodeId from, NodeId to) { program_.nodes[from].empty.push_back(to); }
  void Bytes(NodeId from, uint8_t first, uint8_t last, NodeId to);
  NodeId Literal(NodeId from, std::string_view bytes);
  NodeId Call(NodeId from, RuleId rule);
  // One of the texts: a tree of their common beginnings.
  NodeId OneOf(NodeId from, const std::vector<std::string>& texts);
  // A part `least` to `most` times (kNoLimit: any number). `body` must add the same each time.
  NodeId Repeat(NodeId from, int64_t least, int64_t most,
                const std::function<NodeId(NodeId)>& body);

  // The limit is passed: what was added since leads nowhere. The caller stops and Build() fails.
  bool is_full() const { return is_full_; }
  // Errors: too many nodes, a rule that calls itself before it reads anything.
  Result<Program> Build() &&;

 private:
  Program program_;
  bool is_full_ = false;
};

}  // namespace nibble::grammar
