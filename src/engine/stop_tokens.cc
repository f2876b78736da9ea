#include "engine/stop_tokens.h"

#include <set>

#include "base/json.h"

namespace nibble::engine {
namespace {

Status AddStopTokens(const Json& object, std::string_view where, std::set<int32_t>& ids) {
  const auto eos = object.find("eos_token_id");
  if (eos == object.end() || eos->is_null()) return {};
  for (const Json& id : eos->is_array() ? *eos : Json::array({*eos})) {
    if (!id.is_number_integer()) {
      return Fail("{}: eos_token_id: expected an integer or a list of them, found {}", where,
                  eos->dump());
    }
    ids.insert(id.get<int32_t>());
  }
  return {};
}

}  // namespace

Result<std::vector<int32_t>> ReadStopTokens(const std::filesystem::path& dir) {
  std::set<int32_t> ids;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = dir / name;
    if (!std::filesystem::exists(path)) continue;
    NIBBLE_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
    if (!json.is_object()) return Fail("{}: expected an object", path.string());
    NIBBLE_RETURN_IF_ERROR(AddStopTokens(json, path.string(), ids));
    if (const auto text = json.find("text_config"); text != json.end() && text->is_object()) {
      NIBBLE_RETURN_IF_ERROR(AddStopTokens(*text, path.string(), ids));
    }
  }
  return std::vector<int32_t>(ids.begin(), ids.end());
}

}  // namespace nibble::engine
