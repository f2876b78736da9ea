#include "measure/json_lines.h"

#include <fmt/format.h>

#include <string>

#include "base/mapped_file.h"

namespace nibble::measure {

Result<std::vector<Json>> ReadJsonLines(const std::filesystem::path& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  std::vector<Json> values;
  size_t n_lines = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++n_lines;
    if (line.find_first_not_of(" \r\t") == line.npos) continue;
    NIBBLE_ASSIGN_OR_RETURN(Json value,
                            ParseJson(line, fmt::format("{} line {}", path.string(), n_lines)));
    values.push_back(std::move(value));
  }
  if (values.empty()) return Fail("{}: holds no line", path.string());
  return values;
}

}  // namespace nibble::measure
