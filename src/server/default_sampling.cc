#include "server/default_sampling.h"

#include "base/json.h"

namespace nibble::server {

Result<engine::Sampling> ReadDefaultSampling(const std::filesystem::path& dir) {
  engine::Sampling sampling;
  sampling.temperature = 1;
  const std::filesystem::path file = dir / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return sampling;
  NIBBLE_ASSIGN_OR_RETURN(const Json config, ReadJsonFile(file));
  if (!config.is_object()) return Fail("{}: expected an object", file.string());
  const auto read = [&](const char* key, auto* value) -> Status {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) return {};
    if (!found->is_number()) {
      return Fail("{}: {}: expected a number, found {}", file.string(), key,
                  QuoteForMessage(found->dump()));
    }
    found->get_to(*value);
    return {};
  };
  NIBBLE_RETURN_IF_ERROR(read("temperature", &sampling.temperature));
  NIBBLE_RETURN_IF_ERROR(read("top_k", &sampling.top_k));
  NIBBLE_RETURN_IF_ERROR(read("top_p", &sampling.top_p));
  NIBBLE_RETURN_IF_ERROR(read("min_p", &sampling.min_p));
  NIBBLE_RETURN_IF_ERROR(read("repetition_penalty", &sampling.repetition_penalty));
  return sampling;
}

}  // namespace nibble::server
