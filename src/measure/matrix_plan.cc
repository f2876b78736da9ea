#include "measure/matrix_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <set>

namespace nibble::measure {
namespace {

constexpr int kServePort = 8000;  // nibble serve's own default

Status CheckFields(const Json& object, const std::string& where,
                   std::initializer_list<std::string_view> known) {
  if (!object.is_object()) return Fail("{}: expected an object", where);
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(known, key) == known.end()) return Fail("{}: unknown \"{}\"", where, key);
  }
  return {};
}

Result<std::string> TextOf(const Json& object, const std::string& where, const char* key) {
  const Json value = object.value(key, Json());
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    return Fail("{}: \"{}\": expected a text", where, key);
  }
  return value.get<std::string>();
}

Result<std::vector<std::string>> WordsOf(const Json& object, const std::string& where,
                                         const char* key) {
  const Json value = object.value(key, Json::array());
  const bool is_words = value.is_array() && std::ranges::all_of(value, [](const Json& word) {
                          return word.is_string();
                        });
  if (!is_words) return Fail("{}: \"{}\": expected a list of texts", where, key);
  return value.get<std::vector<std::string>>();
}

Result<double> SecondsOf(const Json& object, const std::string& where, const char* key,
                         double standard) {
  const Json value = object.value(key, Json(standard));
  if (!value.is_number() || value.get<double>() < 0) {
    return Fail("{}: \"{}\": expected seconds", where, key);
  }
  return value.get<double>();
}

// A name becomes a folder.
Result<std::string> NameOf(const Json& object, const std::string& where, const char* key,
                           std::set<std::string>* taken) {
  NIBBLE_ASSIGN_OR_RETURN(std::string name, TextOf(object, where, key));
  if (name.contains('/') || name.starts_with('.')) {
    return Fail("{}: \"{}\": expected a name that can be a folder's, found \"{}\"", where, key,
                name);
  }
  if (!taken->insert(name).second) return Fail("{}: another \"{}\" \"{}\"", where, key, name);
  return name;
}

Result<MatrixBuild> BuildOf(const Json& entry, const std::string& where, const std::string& nibble,
                            std::set<std::string>* taken) {
  NIBBLE_RETURN_IF_ERROR(
      CheckFields(entry, where, {"name", "model", "arguments", "port", "command", "url"}));
  MatrixBuild build;
  NIBBLE_ASSIGN_OR_RETURN(build.name, NameOf(entry, where, "name", taken));
  if (entry.contains("model") == entry.contains("command")) {
    return Fail("{}: expected either \"model\" or \"command\"", where);
  }
  if (entry.contains("command")) {
    NIBBLE_RETURN_IF_ERROR(CheckFields(entry, where, {"name", "command", "url"}));
    NIBBLE_ASSIGN_OR_RETURN(build.command, WordsOf(entry, where, "command"));
    if (build.command.empty()) return Fail("{}: \"command\": expected a program", where);
    NIBBLE_ASSIGN_OR_RETURN(build.url, TextOf(entry, where, "url"));
    while (build.url.ends_with('/')) build.url.pop_back();
    if (build.url.ends_with("/v1")) build.url.resize(build.url.size() - 3);
    build.identity = {{"command", build.command}};
    return build;
  }
  NIBBLE_RETURN_IF_ERROR(CheckFields(entry, where, {"name", "model", "arguments", "port"}));
  NIBBLE_ASSIGN_OR_RETURN(const std::string model, TextOf(entry, where, "model"));
  NIBBLE_ASSIGN_OR_RETURN(const auto arguments, WordsOf(entry, where, "arguments"));
  const Json port = entry.value("port", Json(kServePort));
  if (!port.is_number_integer() || port < 1 || port > 65535) {
    return Fail("{}: \"port\": expected 1 to 65535", where);
  }
  build.command = {nibble, "serve", model, "--port", port.dump()};
  build.command.insert(build.command.end(), arguments.begin(), arguments.end());
  build.url = "http://127.0.0.1:" + port.dump();
  build.identity = {{"model", model}, {"arguments", arguments}};
  return build;
}

Result<const Json*> EntriesOf(const Json& plan, const std::string& where, const char* key) {
  if (!plan.contains(key) || !plan[key].is_array() || plan[key].empty()) {
    return Fail("{}: \"{}\": expected a list", where, key);
  }
  return &plan[key];
}

}  // namespace

Result<MatrixPlan> ReadMatrixPlan(const std::filesystem::path& path, const std::string& nibble) {
  NIBBLE_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  const std::string where = path.string();
  NIBBLE_RETURN_IF_ERROR(
      CheckFields(json, where, {"out", "builds", "suites", "ready_s", "grace_s", "upload"}));
  MatrixPlan plan;
  NIBBLE_ASSIGN_OR_RETURN(plan.out, TextOf(json, where, "out"));
  NIBBLE_ASSIGN_OR_RETURN(plan.upload, WordsOf(json, where, "upload"));
  NIBBLE_ASSIGN_OR_RETURN(plan.ready_s, SecondsOf(json, where, "ready_s", plan.ready_s));
  NIBBLE_ASSIGN_OR_RETURN(plan.grace_s, SecondsOf(json, where, "grace_s", plan.grace_s));
  NIBBLE_ASSIGN_OR_RETURN(const Json* builds, EntriesOf(json, where, "builds"));
  std::set<std::string> names;
  for (const Json& entry : *builds) {
    const std::string place = fmt::format("{}: builds[{}]", where, plan.builds.size());
    NIBBLE_ASSIGN_OR_RETURN(MatrixBuild build, BuildOf(entry, place, nibble, &names));
    plan.builds.push_back(std::move(build));
  }
  NIBBLE_ASSIGN_OR_RETURN(const Json* suites, EntriesOf(json, where, "suites"));
  names.clear();
  for (const Json& entry : *suites) {
    const std::string place = fmt::format("{}: suites[{}]", where, plan.suites.size());
    NIBBLE_RETURN_IF_ERROR(CheckFields(entry, place, {"suite", "arguments"}));
    MatrixSuite suite;
    NIBBLE_ASSIGN_OR_RETURN(suite.name, NameOf(entry, place, "suite", &names));
    NIBBLE_ASSIGN_OR_RETURN(suite.arguments, WordsOf(entry, place, "arguments"));
    plan.suites.push_back(std::move(suite));
  }
  return plan;
}

}  // namespace nibble::measure
