#include "server/structured_output.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/json.h"
#include "server/request_fields.h"

namespace nibble::server {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Kind = AnswerShape::Kind;

constexpr size_t kMaxGrammars = 16;

// The text of a value of the request: a string's characters, anything else as JSON. The members of
// the path exist.
std::string TextAt(std::string_view body, std::initializer_list<std::string_view> path) {
  const OrderedJson whole = OrderedJson::parse(body);
  const OrderedJson* value = &whole;
  for (const std::string_view name : path) value = &*value->find(name);
  return value->is_string() ? value->get<std::string>() : value->dump();
}

// Takes the errors of an object within the request.
void Close(RequestFields& members, RequestFields* fields) {
  members.RefuseUnknown();
  if (members.error().has_value()) fields->Fault(*members.error());
}

std::optional<AnswerShape> ReadResponseFormat(RequestFields& fields, std::string_view body) {
  const Json* format = fields.Find("response_format");
  if (format == nullptr) return std::nullopt;
  RequestFields members(*format, "response_format.");
  const std::string type = members.String("type", "");
  std::optional<AnswerShape> shape;
  if (type == "json_object") {
    shape = {.field = "response_format", .kind = Kind::kJsonObject};
  } else if (type == "json_schema") {
    static const Json kNothing = Json::object();
    const Json* outer = members.Find("json_schema");
    RequestFields inner(outer == nullptr ? kNothing : *outer, "response_format.json_schema.");
    inner.String("name", "");
    inner.String("description", "");
    inner.Bool("strict", true);  // it is, always
    const std::string field = "response_format.json_schema.schema";
    if (inner.Find("schema") == nullptr) {
      inner.Fault(BadField(field, "{}: expected a schema", field));
    } else {
      shape = {.field = field,
               .kind = Kind::kJsonSchema,
               .text = TextAt(body, {"response_format", "json_schema", "schema"})};
    }
    Close(inner, &members);
  } else if (type != "text") {
    members.Fault(BadField("response_format.type",
                           "response_format.type: expected text, json_object or json_schema"));
  }
  Close(members, &fields);
  return shape;
}

// One of vLLM's fields: `path` leads to `name` among `fields`.
std::optional<AnswerShape> ReadShape(RequestFields& fields, std::string_view body,
                                     std::initializer_list<std::string_view> path, Kind kind) {
  const std::string_view name = *(path.end() - 1);
  const Json* value = fields.Find(name);
  if (value == nullptr) return std::nullopt;
  const std::string field = fmt::format("{}", fmt::join(path, "."));
  const bool fits = kind == Kind::kJsonSchema ? value->is_object() || value->is_string()
                    : kind == Kind::kRegex    ? value->is_string()
                                              : value->is_array();
  if (!fits) {
    fields.Fault(BadField(field, "{}: expected {}", field,
                          kind == Kind::kJsonSchema ? "a schema"
                          : kind == Kind::kRegex    ? "an expression"
                                                    : "a list of strings"));
    return std::nullopt;
  }
  return AnswerShape{.field = field, .kind = kind, .text = TextAt(body, path)};
}

Result<std::vector<std::string>> ReadChoices(const std::string& text) {
  NIBBLE_ASSIGN_OR_RETURN(const Json list, ParseJson(text, "choices"));
  std::vector<std::string> choices;
  for (const Json& choice : list) {
    if (!choice.is_string()) return Fail("expected a list of strings");
    choices.push_back(choice.get<std::string>());
  }
  return choices;
}

Result<std::shared_ptr<const grammar::Grammar>> Compile(
    const AnswerShape& shape, std::shared_ptr<const grammar::Vocabulary> vocabulary) {
  using grammar::Grammar;
  switch (shape.kind) {
    case Kind::kJsonObject:
      return Grammar::OfJsonObject(std::move(vocabulary));
    case Kind::kJsonSchema:
      return Grammar::OfJsonSchema(shape.text, std::move(vocabulary));
    case Kind::kRegex:
      return Grammar::OfRegex(shape.text, std::move(vocabulary));
    case Kind::kToolCall:
    case Kind::kToolCalls:
      return Grammar::OfToolCalls(shape.text, shape.kind == Kind::kToolCalls,
                                  std::move(vocabulary));
    case Kind::kChoice:
      break;
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<std::string> choices, ReadChoices(shape.text));
  return Grammar::OfChoice(choices, std::move(vocabulary));
}

std::shared_ptr<TokenConstraint> NewConstraintOf(
    const std::shared_ptr<const grammar::Grammar>& grammar) {
  return grammar == nullptr ? nullptr : grammar::Grammar::NewConstraint(grammar);
}

// Behind a call there is another one, or the end; but free content may go on.
class AnswerConstraint : public TokenConstraint {
 public:
  explicit AnswerConstraint(const AnswerRules& rules)
      : rules_(rules), content_(NewConstraintOf(rules.content)) {}

  void FillMask(std::span<uint64_t> mask) override {
    if (part_ == Part::kCall && call_ != nullptr) {
      call_->FillMask(mask);
      return;
    }
    if (part_ == Part::kThought || part_ == Part::kCall || content_ == nullptr) {
      std::ranges::fill(mask, ~uint64_t{0});
      return;
    }
    if (part_ == Part::kAfterCall) {
      std::ranges::fill(mask, 0);
    } else {
      content_->FillMask(mask);
    }
    if (part_ == Part::kContent) return;
    if (rules_.thought.has_value() && part_ == Part::kNone) Allow(rules_.thought->begin, mask);
    if (rules_.call.has_value()) Allow(rules_.call->begin, mask);
  }

  void Accept(int32_t id) override {
    const bool may_call = part_ != Part::kContent || content_ == nullptr;
    if (part_ == Part::kThought) {
      if (id == rules_.thought->end) {
        part_ = Part::kNone;
        rules_.thought.reset();  // one is enough
      }
    } else if (part_ == Part::kCall) {
      if (call_ != nullptr) call_->Accept(id);
      if (id == rules_.call->end) part_ = Part::kAfterCall;
    } else if (part_ == Part::kNone && rules_.thought.has_value() && id == rules_.thought->begin) {
      part_ = Part::kThought;
    } else if (may_call && rules_.call.has_value() && id == rules_.call->begin) {
      part_ = Part::kCall;
      call_ = NewConstraintOf(rules_.calls);
      if (call_ != nullptr) call_->Accept(id);
    } else {
      part_ = Part::kContent;
      if (content_ != nullptr) content_->Accept(id);
    }
  }

  bool is_complete() const override {
    if (part_ == Part::kThought || part_ == Part::kCall) return false;
    return part_ == Part::kAfterCall || content_ == nullptr || content_->is_complete();
  }

 private:
  enum class Part : uint8_t { kNone, kThought, kCall, kAfterCall, kContent };

  static void Allow(text::TokenId id, std::span<uint64_t> mask) {
    const auto bit = static_cast<size_t>(id);
    mask[bit / 64] |= uint64_t{1} << (bit % 64);
  }

  AnswerRules rules_;
  std::shared_ptr<TokenConstraint> content_;
  std::shared_ptr<TokenConstraint> call_;  // of the call that is being written
  Part part_ = Part::kNone;
};

}  // namespace

std::optional<AnswerShape> ReadAnswerShape(RequestFields& fields, std::string_view body) {
  std::vector<AnswerShape> shapes;
  const auto add = [&](std::optional<AnswerShape> shape) {
    if (shape.has_value()) shapes.push_back(*std::move(shape));
  };
  add(ReadResponseFormat(fields, body));
  add(ReadShape(fields, body, {"guided_json"}, Kind::kJsonSchema));
  add(ReadShape(fields, body, {"guided_regex"}, Kind::kRegex));
  add(ReadShape(fields, body, {"guided_choice"}, Kind::kChoice));
  if (const Json* outputs = fields.Find("structured_outputs"); outputs != nullptr) {
    RequestFields members(*outputs, "structured_outputs.");
    add(ReadShape(members, body, {"structured_outputs", "json"}, Kind::kJsonSchema));
    add(ReadShape(members, body, {"structured_outputs", "regex"}, Kind::kRegex));
    add(ReadShape(members, body, {"structured_outputs", "choice"}, Kind::kChoice));
    if (members.Bool("json_object", false)) {
      add(AnswerShape{.field = "structured_outputs.json_object"});
    }
    Close(members, &fields);
  }
  if (shapes.empty()) return std::nullopt;
  if (shapes.size() > 1) {
    fields.Fault(
        BadField(shapes[1].field, "{}: not together with {}", shapes[1].field, shapes[0].field));
  }
  return std::move(shapes[0]);
}

GrammarCache::Made GrammarCache::Get(const AnswerShape& shape) {
  const std::string key = fmt::format("{} {}", static_cast<int>(shape.kind), shape.text);
  std::unique_lock lock(mutex_);
  const auto known = std::ranges::find(entries_, key, &Entry::first);
  if (known != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, known);
    return known->second;
  }
  if (const auto other = in_making_.find(key); other != in_making_.end()) {
    const std::shared_future<Made> future = other->second;
    lock.unlock();
    return future.get();
  }
  std::promise<Made> promise;
  in_making_.emplace(key, promise.get_future().share());
  lock.unlock();
  Made made = Compile(shape, vocabulary_);
  promise.set_value(made);
  lock.lock();
  in_making_.erase(key);
  if (!made.has_value()) return made;
  entries_.emplace_front(key, *made);
  if (entries_.size() > kMaxGrammars) entries_.pop_back();
  return made;
}

size_t GrammarCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::shared_ptr<TokenConstraint> NewAnswerConstraint(const AnswerRules& rules) {
  return std::make_shared<AnswerConstraint>(rules);
}

}  // namespace nibble::server
