// Result<T>: a value or one line that says what went wrong.
//
// Input errors (files, flags, network) are Result values whose message names the place: file,
// tensor, row, group, and what was expected. Bugs of our own are CHECKs (base/check.h). Libraries
// never print; the message reaches the user through cli/main.cc alone.
#pragma once

#include <fmt/format.h>

#include <expected>
#include <string>
#include <utility>

namespace nibble {

struct Error {
  std::string message;
};

template <typename T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

// return Fail("{}: expected {} bytes, found {}", path, expected, found);
template <typename... Args>
[[nodiscard]] std::unexpected<Error> Fail(fmt::format_string<Args...> format, Args&&... args) {
  return std::unexpected(Error{fmt::format(format, std::forward<Args>(args)...)});
}

}  // namespace nibble

#define NIBBLE_CONCAT_INNER(a, b) a##b
#define NIBBLE_CONCAT(a, b) NIBBLE_CONCAT_INNER(a, b)

// Leaves the calling function with the error of `expression` (any Result) if it has one.
#define NIBBLE_RETURN_IF_ERROR(expression)                                \
  do {                                                                    \
    if (auto status_ = (expression); !status_.has_value()) [[unlikely]] { \
      return std::unexpected(std::move(status_).error());                 \
    }                                                                     \
  } while (false)

// NIBBLE_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
#define NIBBLE_ASSIGN_OR_RETURN(declaration, expression) \
  NIBBLE_ASSIGN_OR_RETURN_INNER(NIBBLE_CONCAT(result_, __LINE__), declaration, expression)
#define NIBBLE_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                          \
  if (!result.has_value()) [[unlikely]] {                              \
    return std::unexpected(std::move(result).error());                 \
  }                                                                    \
  declaration = std::move(result).value()
