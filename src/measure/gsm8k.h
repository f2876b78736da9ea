// GSM8K's answers: which number a text ends with. Tested by suites_test.cc.
#pragma once

#include <optional>
#include <string_view>

namespace nibble::measure {

// The first number after the last "Answer:", else the last number of the text. Thousands may be
// separated by commas, a "$" may stand in front.
std::optional<double> FinalNumber(std::string_view text);

}  // namespace nibble::measure
