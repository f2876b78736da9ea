#include "text/tokenizer_events.h"

#include <optional>

namespace nibble::text {
namespace {

// The event interface of nlohmann::json. Each event returns whether to go on; refusal_ says why
// not.
class Reader {
 public:
  explicit Reader(TokenizerEvents* out) : out_(*out) {}

  bool null() { return Put(nullptr); }
  bool boolean(bool value) { return Put(value); }
  bool number_integer(int64_t value) { return Number(value); }
  bool number_unsigned(uint64_t value) {
    return std::in_range<int64_t>(value) ? Number(static_cast<int64_t>(value)) : Put(value);
  }
  bool number_float(double value, const std::string&) { return Put(value); }
  bool string(std::string& value) {
    if (section_ == Section::kMerges) return JoinedMerge(value);
    if (section_ == Section::kMergePair) {
      pair_.push_back(std::move(value));
      return pair_.size() <= 2 || BadMerge();
    }
    return Put(std::move(value));
  }
  bool binary(std::vector<uint8_t>&) { return Refuse("holds binary data"); }

  bool start_object(size_t) {
    if (AtModelKey("vocab")) {
      Place(nullptr);  // so that a second "vocab" is a repeated key
      section_ = Section::kVocab;
      return true;
    }
    return Open(Json::object());
  }
  bool key(std::string& name) {
    key_ = std::move(name);
    if (section_ == Section::kVocab) return true;
    return !open_.back()->contains(key_) || Refuse(fmt::format("repeats the key \"{}\"", key_));
  }
  bool end_object() { return Close(Section::kVocab); }

  bool start_array(size_t) {
    if (section_ == Section::kMerges) {
      section_ = Section::kMergePair;
      pair_.clear();
      return true;
    }
    if (AtModelKey("merges")) {
      Place(nullptr);
      section_ = Section::kMerges;
      return true;
    }
    return Open(Json::array());
  }
  bool end_array() {
    if (section_ == Section::kMergePair) {
      if (pair_.size() != 2) return BadMerge();
      out_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      section_ = Section::kMerges;
      return true;
    }
    return Close(Section::kMerges);
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) {
    return Refuse(fmt::format("is not valid JSON: {}", error.what()));
  }

  const std::string& refusal() const { return refusal_; }

 private:
  enum class Section { kDocument, kVocab, kMerges, kMergePair };

  bool Refuse(std::string why) {
    refusal_ = std::move(why);
    return false;
  }
  bool BadMerge() {
    return Refuse(fmt::format("model.merges[{}]: expected two tokens", out_.merges.size()));
  }

  bool AtModelKey(std::string_view name) const {
    return section_ == Section::kDocument && open_.size() == 2 && in_model_ && key_ == name;
  }

  bool Number(int64_t value) {
    if (section_ != Section::kVocab) return Put(value);
    out_.vocab.emplace_back(std::move(key_), value);
    return true;
  }

  // "left right": the older spelling, for tokens without spaces.
  bool JoinedMerge(const std::string& merge) {
    const size_t space = merge.find(' ');
    if (space == std::string::npos || merge.find(' ', space + 1) != std::string::npos) {
      return BadMerge();
    }
    out_.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
    return true;
  }

  bool Put(Json value) { return Place(std::move(value)) != nullptr; }

  // Null, with refusal_ set, where no such value belongs.
  Json* Place(Json value) {
    if (section_ == Section::kVocab) {
      Refuse(fmt::format("model.vocab[{}]: expected an id", Json(key_).dump()));
      return nullptr;
    }
    if (section_ != Section::kDocument) {
      BadMerge();
      return nullptr;
    }
    if (open_.empty()) return &(out_.rest = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool Open(Json container) {
    Json* const placed = Place(std::move(container));
    if (placed == nullptr) return false;
    if (open_.size() == kMaxJsonDepth)
      return Refuse(fmt::format("nests deeper than {}", kMaxJsonDepth));
    if (open_.size() == 1) in_model_ = key_ == "model";
    open_.push_back(placed);
    return true;
  }

  bool Close(Section ends) {
    if (section_ == ends) {
      section_ = Section::kDocument;
    } else {
      open_.pop_back();
    }
    return true;
  }

  TokenizerEvents& out_;
  Section section_ = Section::kDocument;
  std::vector<Json*> open_;  // containers of the document, outermost first
  bool in_model_ = false;    // open_[1] is the value of "model"
  std::string key_;
  std::vector<std::string> pair_;
  std::string refusal_;
};

}  // namespace

Result<TokenizerEvents> ReadTokenizerEvents(std::string_view json, std::string_view where) {
  TokenizerEvents events;
  Reader reader(&events);
  if (!Json::sax_parse(json, &reader)) return Fail("{}: {}", where, reader.refusal());
  if (!events.rest.is_object()) return Fail("{}: expected a JSON object", where);
  return events;
}

}  // namespace nibble::text
