#include "server/request_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace nibble::server {
namespace {

// A value in an error message: short, and valid text.
std::string Shown(const Json& value) {
  constexpr size_t kMaxShownBytes = 60;
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMaxShownBytes) text = text.substr(0, kMaxShownBytes) + "...";
  return text;
}

}  // namespace

RequestFields::RequestFields(const Json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {
  if (!object.is_object()) {
    Fault({.message = fmt::format("expected a JSON object, found {}", Shown(object)),
           .param = prefix_.substr(0, prefix_.empty() ? 0 : prefix_.size() - 1),
           .code = "invalid_type"});
  }
}

const Json* RequestFields::Find(std::string_view name) {
  known_.emplace(name);
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool RequestFields::Bool(std::string_view name, bool fallback) {
  const Json* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Fault(BadField(Path(name), "{}: expected true or false, found {}", Path(name), Shown(*value)));
    return fallback;
  }
  return value->get<bool>();
}

double RequestFields::Number(std::string_view name, double fallback, double low, double high) {
  const Json* value = Find(name);
  if (value == nullptr) return fallback;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= low && number <= high)) {
    Fault(BadField(Path(name), "{}: expected a number from {} to {}, found {}", Path(name), low,
                   high, Shown(*value)));
    return fallback;
  }
  return number;
}

int64_t RequestFields::Integer(std::string_view name, int64_t fallback, int64_t low, int64_t high) {
  const Json* value = Find(name);
  if (value == nullptr) return fallback;
  const bool is_integer =
      value->is_number_integer() &&
      (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  if (!is_integer || value->get<int64_t>() < low || value->get<int64_t>() > high) {
    Fault(BadField(Path(name), "{}: expected an integer from {} to {}, found {}", Path(name), low,
                   high, Shown(*value)));
    return fallback;
  }
  return value->get<int64_t>();
}

std::string RequestFields::String(std::string_view name, std::string_view fallback) {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_string()) {
    Fault(BadField(Path(name), "{}: expected a string, found {}", Path(name), Shown(*value)));
    value = nullptr;
  }
  return value == nullptr ? std::string(fallback) : value->get<std::string>();
}

std::vector<std::string> RequestFields::Strings(std::string_view name, size_t max_strings) {
  const Json* value = Find(name);
  std::vector<std::string> strings;
  if (value == nullptr) return strings;
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > max_strings) {
    Fault(BadField(Path(name), "{}: expected at most {} strings, found {}", Path(name), max_strings,
                   list.size()));
    return strings;
  }
  for (const Json& entry : list) {
    if (!entry.is_string() || entry.get_ref<const std::string&>().empty()) {
      Fault(BadField(Path(name), "{}: expected strings that are not empty, found {}", Path(name),
                     Shown(entry)));
      return {};
    }
    strings.push_back(entry.get<std::string>());
  }
  return strings;
}

std::vector<int32_t> RequestFields::TokenIds(std::string_view name, int64_t n_token_ids) {
  const Json* value = Find(name);
  if (value == nullptr) return {};
  auto ids = ReadTokenIds(*value, Path(name), n_token_ids);
  if (ids.has_value()) return *std::move(ids);
  Fault(std::move(ids).error());
  return {};
}

void RequestFields::Ignore(std::span<const std::string_view> names) {
  for (const std::string_view name : names) {
    if (Find(name) != nullptr) ignored_.emplace_back(name);
  }
}

void RequestFields::Refuse(std::string_view name, const Json& only, std::string_view why) {
  const Json* value = Find(name);
  if (value == nullptr || *value == only) return;
  Fault({.message = fmt::format("{}: {}", Path(name), why),
         .param = Path(name),
         .code = "unsupported_parameter"});
}

void RequestFields::RefuseUnknown() {
  if (!object_.is_object()) return;
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name)) continue;
    Fault({.message = fmt::format("Unrecognized request argument supplied: {}",
                                  QuoteForMessage(Path(name))),
           .param = Path(name),
           .code = "unknown_parameter"});
  }
}

void RequestFields::Fault(ApiError error) {
  if (!error_.has_value()) error_ = std::move(error);
}

ApiResult<std::vector<int32_t>> ReadTokenIds(const Json& list, std::string_view path,
                                             int64_t n_token_ids) {
  std::vector<int32_t> ids;
  if (!list.is_array()) {
    return std::unexpected(BadField(std::string(path), "{}: expected a list of token ids, found {}",
                                    path, Shown(list)));
  }
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= n_token_ids) {
      return std::unexpected(BadField(std::string(path),
                                      "{}: expected token ids from 0 to {}, found {}", path,
                                      n_token_ids - 1, Shown(id)));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace nibble::server
