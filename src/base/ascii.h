// Characters by their ASCII meaning, whatever the locale. Tested through the parsers that use it.
#pragma once

namespace nibble {

constexpr bool IsAsciiDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace nibble
