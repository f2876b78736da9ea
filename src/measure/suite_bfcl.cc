// BFCL simple: one tool offered, one call expected.
#include <fmt/format.h>

#include <unordered_map>

#include "measure/bfcl.h"
#include "measure/json_lines.h"
#include "measure/suite.h"

namespace nibble::measure {
namespace {

constexpr const char* kBfclFile = "BFCL_v4_simple_python.json";
constexpr int kMaxCallTokens = 512;

Json JudgeCalls(const Item& item, const Reply& reply) {
  const std::string fault =
      CallFault(item.gold.at("function"), item.gold.at("answer"), reply.tool_calls);
  return {{"prompt", item.query.messages.back().content},
          {"expected", item.gold["answer"].dump()},
          {"fault", fault},
          {"score", fault.empty() ? 1 : 0}};
}

Result<Suite> ReadSuite(const std::filesystem::path& dir, int n) {
  NIBBLE_ASSIGN_OR_RETURN(const auto records, ReadJsonLines(dir / kBfclFile));
  NIBBLE_ASSIGN_OR_RETURN(const auto answers, ReadJsonLines(dir / "possible_answer" / kBfclFile));
  std::unordered_map<std::string, Json> answer_of_id;
  for (const Json& answer : answers) answer_of_id[answer.at("id")] = answer.at("ground_truth")[0];
  Suite suite{.name = "bfcl-simple", .settings = {{"max_tokens", kMaxCallTokens}}};
  for (const Json& record : records) {
    if (n > 0 && std::cmp_equal(suite.items.size(), n)) break;
    const std::string id = record.at("id");
    const auto answer = answer_of_id.find(id);
    if (answer == answer_of_id.end()) return Fail("{}: {} has no answer", dir.string(), id);
    Query query{.tools_json = Json::array({ToTool(record.at("function").at(0))}).dump(),
                .max_tokens = kMaxCallTokens};
    for (const Json& message : record.at("question").at(0)) {
      query.messages.push_back({.role = message.at("role"), .content = message.at("content")});
    }
    suite.items.push_back(
        {.id = id,
         .query = std::move(query),
         .gold = {{"function", record["function"][0]}, {"answer", answer->second}}});
  }
  suite.judge = JudgeCalls;
  return suite;
}

}  // namespace

Result<Suite> BfclSuite(const std::filesystem::path& dir, int n) {
  try {
    return ReadSuite(dir, n);
  } catch (const Json::exception& fault) {
    return Fail("{}: a record is not as bfcl-eval writes them: {}", dir.string(), fault.what());
  }
}

}  // namespace nibble::measure
