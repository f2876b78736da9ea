#include "base/json.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mapped_file.h"

namespace nibble {

Result<Json> ParseJson(std::string_view text, std::string_view where) {
  std::vector<std::set<std::string, std::less<>>> keys;  // of the objects that are open
  std::string refusal;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= kMaxJsonDepth && refusal.empty()) {
          refusal = fmt::format("nested deeper than {}", kMaxJsonDepth);
        }
        keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(value.get<std::string>()).second && refusal.empty()) {
          refusal = fmt::format("duplicate key {}", value.dump());
        }
        break;
      case Json::parse_event_t::value:
        break;
    }
    return true;
  };
  try {
    Json value = Json::parse(text, callback);
    if (!refusal.empty()) return Fail("{}: JSON {}", where, refusal);
    return value;
  } catch (const Json::exception& error) {
    return Fail("{}: not valid JSON: {}", where, error.what());
  }
}

Result<Json> ReadJsonFile(const std::filesystem::path& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return ParseJson(text, path.string());
}

}  // namespace nibble
