// What an answer must look like, where a request says so: response_format as OpenAI has it, vLLM's
// structured_outputs, guided_json, guided_regex and guided_choice, and calls of tools.
//
// Grammars are kept, those used last, since requests of one client mostly ask for the same and a
// grammar remembers which tokens it allows. Tested by structured_output_test.cc and
// tests/interop/test_serve_structured.py.
#pragma once

#include <cstdint>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "base/token_constraint.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"

namespace nibble::server {

class RequestFields;

// A shape as the request has it.
struct AnswerShape {
  enum class Kind : uint8_t { kJsonObject, kJsonSchema, kRegex, kChoice, kToolCall, kToolCalls };
  std::string field = {};  // that says so
  Kind kind = Kind::kJsonObject;
  std::string text = {};  // schema, expression, or the choices or tools as a JSON list
};

// Reads those fields. `body`: the whole request, since the order of a schema's properties, which an
// answer follows, is that of its text.
std::optional<AnswerShape> ReadAnswerShape(RequestFields& fields, std::string_view body);

// Thread-safe.
class GrammarCache {
 public:
  using Made = Result<std::shared_ptr<const grammar::Grammar>>;

  explicit GrammarCache(std::shared_ptr<const grammar::Vocabulary> vocabulary)
      : vocabulary_(std::move(vocabulary)) {}

  // Error: why there is no such grammar. One that is being made is waited for.
  Made Get(const AnswerShape& shape);
  size_t size() const;

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const grammar::Grammar>>;

  const std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the one used last first
  std::map<std::string, std::shared_future<Made>> in_making_;
};

// The tokens between which a part of an answer stands that is no content.
struct PartMarks {
  text::TokenId begin = 0;
  text::TokenId end = 0;
};

// What an answer is held to.
struct AnswerRules {
  std::shared_ptr<const grammar::Grammar> content = nullptr;  // null: free
  std::optional<PartMarks> thought = std::nullopt;            // that may stand before the content
  std::optional<PartMarks> call = std::nullopt;               // that may stand in its place
  std::shared_ptr<const grammar::Grammar> calls = nullptr;    // each with its marks; null: free
};

// For one choice.
std::shared_ptr<TokenConstraint> NewAnswerConstraint(const AnswerRules& rules);

}  // namespace nibble::server
