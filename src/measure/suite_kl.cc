// The likelihood of a text and of what else could have stood there, token by token: perplexity by
// itself, KL divergence between two runs.
#include <fmt/format.h>

#include <algorithm>

#include "base/mapped_file.h"
#include "measure/suite.h"

namespace nibble::measure {
namespace {

// Pieces of about n_bytes that end before a space or a line break, so that no word and no character
// is cut.
std::vector<std::string> CutText(const std::string& text, size_t n_bytes) {
  std::vector<std::string> pieces;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(begin + n_bytes, text.size());
    if (end < text.size()) {
      const size_t space = text.find_last_of(" \n", end);
      end = space == text.npos || space <= begin ? text.find_first_of(" \n", end) : space;
      end = std::min(end, text.size());
    }
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

}  // namespace

Result<Suite> KlSuite(const std::filesystem::path& text_file, int n, int n_top_logprobs) {
  constexpr size_t kPieceBytes = 1000;
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(text_file));
  Suite suite{.name = "kl",
              .settings = {{"piece_bytes", kPieceBytes}, {"top_logprobs", n_top_logprobs}}};
  for (std::string& piece : CutText(text, kPieceBytes)) {
    if (n > 0 && std::cmp_equal(suite.items.size(), n)) break;
    suite.items.push_back(
        {.id = fmt::format("{}", suite.items.size()),
         .query = {
             .text = std::move(piece), .n_top_logprobs = n_top_logprobs, .reads_prompt = true}});
  }
  if (suite.items.empty()) return Fail("{}: holds no text", text_file.string());
  suite.judge = [](const Item&, const Reply& reply) {
    Json tokens = Json::array();
    Json logprobs = Json::array();
    Json tops = Json::array();
    for (const Step& step : reply.steps) {
      tokens.push_back(step.token);
      logprobs.push_back(step.logprob.has_value() ? Json(*step.logprob) : Json());
      Json top = Json::array();
      for (const TokenLogprob& entry : step.top) {
        top.push_back(Json::array({entry.token, entry.logprob}));
      }
      tops.push_back(std::move(top));
    }
    return Json{
        {"tokens", std::move(tokens)}, {"logprobs", std::move(logprobs)}, {"top", std::move(tops)}};
  };
  return suite;
}

}  // namespace nibble::measure
