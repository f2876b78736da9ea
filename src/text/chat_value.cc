#include "text/chat_value.h"

#include <fmt/format.h>
#include <locale.h>
#include <wctype.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "text/utf8.h"

namespace nibble::text {
namespace {

// repr(float): the shortest digits that read back the same, with an exponent below 1e-4 and from
// 1e16 on.
std::string PythonFloat(double value) {
  char buffer[64];
  const auto scientific =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string with_exponent(buffer, scientific.ptr);
  const int exponent = std::atoi(with_exponent.c_str() + with_exponent.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return with_exponent;
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string text(buffer, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

// str.lower() in code points, without the characters whose lower case is longer than one.
std::u32string Lower(std::string_view text) {
  static const locale_t kUnicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  std::u32string lower;
  for (size_t i = 0; i < text.size();) {
    const Character character = CharacterAt(text, i);
    const auto wide = static_cast<wint_t>(character.code_point);
    lower +=
        static_cast<char32_t>(kUnicode != nullptr ? towlower_l(wide, kUnicode) : towlower(wide));
    i += character.n_bytes;
  }
  return lower;
}

std::string FormatScalar(const Json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number_float()) return PythonFloat(value.get<double>());
  return value.dump();  // an integer
}

}  // namespace

std::string Quoted(std::string_view text) { return fmt::format("{0}{1}{0}", kQuote, text); }

std::string FormatValue(const Json& value, bool quote_keys) {
  if (value.is_string()) return Quoted(value.get_ref<const std::string&>());
  if (!value.is_structured()) return FormatScalar(value);
  std::string text;
  if (value.is_object()) {
    for (const auto& [key, inner] : SortedItems(value)) {
      if (!text.empty()) text += ',';
      text += quote_keys ? Quoted(key) : std::string(key);
      text += ':';
      text += FormatValue(*inner, quote_keys);
    }
    return fmt::format("{{{}}}", text);
  }
  for (const Json& inner : value) {
    if (!text.empty()) text += ',';
    text += FormatValue(inner, quote_keys);
  }
  return fmt::format("[{}]", text);
}

std::vector<std::pair<std::string_view, const Json*>> SortedItems(const Json& object) {
  using Item = std::pair<std::string_view, const Json*>;
  std::vector<std::pair<std::u32string, Item>> keyed;
  for (const auto& [key, value] : object.items()) keyed.emplace_back(Lower(key), Item(key, &value));
  std::ranges::sort(keyed);  // equal in lower case: by the key itself
  std::vector<Item> items;
  items.reserve(keyed.size());
  for (const auto& [lower, item] : keyed) items.push_back(item);
  return items;
}

const Json* Member(const Json& value, std::string_view key) {
  if (!value.is_object()) return nullptr;
  const auto found = value.find(key);
  return found == value.end() ? nullptr : &*found;
}

bool IsTruthy(const Json* value) {
  if (value == nullptr || value->is_null()) return false;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number()) return value->get<double>() != 0;
  if (value->is_string()) return !value->get_ref<const std::string&>().empty();
  return !value->empty();
}

}  // namespace nibble::text
