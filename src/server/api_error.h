// Errors as OpenAI's clients expect them: a status and {"error": {message, type, param, code}}.
#pragma once

#include <fmt/format.h>

#include <expected>
#include <string>
#include <utility>

#include "server/http_message.h"

namespace nibble::server {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};  // the field at fault; "": null
  std::string code = {};   // "": null
  int retry_after_s = 0;   // > 0: said in a header
};

template <typename T>
using ApiResult = std::expected<T, ApiError>;

// 400, about one field of the body.
template <typename... Args>
[[nodiscard]] ApiError BadField(std::string_view param, fmt::format_string<Args...> format,
                                Args&&... args) {
  return {.message = fmt::format(format, std::forward<Args>(args)...),
          .param = std::string(param),
          .code = "invalid_value"};
}

// {"error": {...}} as text; bytes that are no UTF-8 are replaced.
std::string ErrorBody(const ApiError& error);

HttpResponse ErrorResponse(const ApiError& error);

}  // namespace nibble::server
