// The fields of a request's JSON object, read one by one: type and range are checked, the first
// fault is kept, null counts as absent, and what nobody asked for is found at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/api_error.h"

namespace nibble::server {

class RequestFields {
 public:
  // `object` must outlive this. `prefix` ("stream_options.") stands before names in errors.
  explicit RequestFields(const Json& object, std::string prefix = "");

  // The value if it is there and not null.
  const Json* Find(std::string_view name);

  // Absent: the fallback.
  bool Bool(std::string_view name, bool fallback);
  double Number(std::string_view name, double fallback, double low, double high);
  int64_t Integer(std::string_view name, int64_t fallback, int64_t low, int64_t high);
  std::string String(std::string_view name, std::string_view fallback);
  // A string or a list of strings, none of them empty.
  std::vector<std::string> Strings(std::string_view name, size_t max_strings);
  std::vector<int32_t> TokenIds(std::string_view name, int64_t n_token_ids);

  // Fields that change nothing about the answer; those that are there are remembered.
  void Ignore(std::span<const std::string_view> names);
  const std::vector<std::string>& ignored() const { return ignored_; }
  // A field that may hold nothing but `only` (null: may not be there at all).
  void Refuse(std::string_view name, const Json& only, std::string_view why);
  // Every field that none of the above has named is an error.
  void RefuseUnknown();

  // Keeps the first error alone.
  void Fault(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  std::string Path(std::string_view name) const { return prefix_ + std::string(name); }

  const Json& object_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> ignored_;
  std::optional<ApiError> error_;
};

// The token ids of a list; `path` is the field's name.
ApiResult<std::vector<int32_t>> ReadTokenIds(const Json& list, std::string_view path,
                                             int64_t n_token_ids);

}  // namespace nibble::server
