// Files of src/server/page/, made part of the program by CMake.
#pragma once

#include <string_view>

namespace nibble::server {

extern const std::string_view kPage;     // index.html
extern const std::string_view kOpenApi;  // openapi.json

}  // namespace nibble::server
