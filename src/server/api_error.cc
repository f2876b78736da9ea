#include "server/api_error.h"

#include "base/json.h"

namespace nibble::server {
namespace {

std::string_view TypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

std::string ErrorBody(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const Json body = {{"error",
                      {{"message", error.message},
                       {"type", TypeOf(error.status)},
                       {"param", or_null(error.param)},
                       {"code", or_null(error.code)}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = ErrorBody(error)};
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  return response;
}

}  // namespace nibble::server
