#include "base/json.h"

#include <cstdint>
#include <string>
#include <vector>

#include "base/mapped_file.h"

namespace nibble {
namespace {

// Builds the document and stops at the first fault, so that a hostile text costs no more memory
// than the part read so far. (The parser's own callback could see a fault, but not stop there.)
class DocumentBuilder : public Json::json_sax_t {
 public:
  explicit DocumentBuilder(Json& root) : root_(root) {}

  const std::string& fault() const { return fault_; }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(Json::binary_t&) override { return Stop("binary value"); }

  bool start_object(size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }

  bool key(std::string& name) override {
    const auto [member, is_new] = open_.back()->get_ref<Json::object_t&>().emplace(name, nullptr);
    if (!is_new) return Stop(fmt::format("duplicate key {}", QuoteForMessage(name)));
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& error) override {
    // The parser quotes the text that it choked on, however long it is.
    constexpr size_t kMaxMessageBytes = 200;
    return Stop(std::string(error.what()).substr(0, kMaxMessageBytes));
  }

 private:
  bool Stop(std::string fault) {
    fault_ = std::move(fault);
    return false;
  }

  // Puts `value` where it belongs; returns its place, which stays valid while it is the last one
  // of its parent.
  Json* Place(Json value) {
    Json* place = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      open_.back()->push_back(nullptr);
      place = &open_.back()->back();
    } else if (!open_.empty()) {
      place = member_;
    }
    *place = std::move(value);
    return place;
  }

  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }

  bool Open(Json empty) {
    if (open_.size() == kMaxJsonDepth) {
      return Stop(fmt::format("nested deeper than {}", kMaxJsonDepth));
    }
    open_.push_back(Place(std::move(empty)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  Json& root_;
  std::vector<Json*> open_;  // the containers around the current place, outermost first
  Json* member_ = nullptr;   // the object member whose key was read last
  std::string fault_;
};

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view where) {
  Json root;
  DocumentBuilder builder(root);
  if (!Json::sax_parse(text, &builder)) return Fail("{}: bad JSON: {}", where, builder.fault());
  return root;
}

Result<Json> ReadJsonFile(const std::filesystem::path& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return ParseJson(text, path.string());
}

std::string QuoteForMessage(std::string_view text) {
  constexpr size_t kMaxQuotedBytes = 120;
  const bool is_long = text.size() > kMaxQuotedBytes;
  const Json quoted = std::string(text.substr(0, kMaxQuotedBytes)) + (is_long ? "..." : "");
  return quoted.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace nibble
