// Countries and their capitals: the list of tools/capitals.tsv, which the tiny model was trained
// on, in its order. Tested by exact_questions_test.cc, which compares the two.
#pragma once

#include <span>
#include <string_view>

namespace nibble::measure {

struct Capital {
  std::string_view country;
  std::string_view city;
};

std::span<const Capital> Capitals();

}  // namespace nibble::measure
