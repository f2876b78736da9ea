// Options whose values have names.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <map>
#include <ranges>
#include <string>

namespace nibble::cli {

// An option that takes one of the names and sets *value to what it stands for; the help lists the
// names. (CLI11's own description adds the values, which for enums of one byte are control
// characters.)
template <typename Value, typename T>
CLI::Option* AddChoice(CLI::App* command, const std::string& flag, Value* value,
                       const std::map<std::string, T>& by_name, const std::string& help) {
  CLI::CheckedTransformer to_value(by_name);
  to_value.description("");
  return command->add_option(flag, *value, help)
      ->transform(to_value)
      ->type_name(fmt::format("{{{}}}", fmt::join(std::views::keys(by_name), ",")));
}

}  // namespace nibble::cli
