// What a request's answer may look like, token by token: the one thing that the engine and the
// grammars know of each other. One object belongs to one request; not thread-safe.
#pragma once

#include <cstdint>
#include <span>

namespace nibble {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Writes which ids may come next: id i is bit i % 64 of mask[i / 64]. Tokens that end generation
  // are never among them: they may come where is_complete(). No bit set: nothing can follow.
  virtual void FillMask(std::span<uint64_t> mask) = 0;
  // Takes the next token, one that the mask allowed.
  virtual void Accept(int32_t id) = 0;
  // What was accepted so far is a whole answer.
  virtual bool is_complete() const = 0;
};

}  // namespace nibble
