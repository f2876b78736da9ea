// The arrays that make_golden.py wrote.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"

namespace nibble::formats {

template <typename T>
std::vector<T> Golden(std::string_view name) {
  const auto text =
      ReadTextFile(fmt::format("{}/tests/formats/golden/{}.bin", NIBBLE_SOURCE_DIR, name));
  if (!text.has_value() || text->empty() || text->size() % sizeof(T) != 0) {
    ADD_FAILURE() << name << ": not an array";
    return {};
  }
  std::vector<T> values(text->size() / sizeof(T));
  std::memcpy(values.data(), text->data(), text->size());
  return values;
}

}  // namespace nibble::formats
