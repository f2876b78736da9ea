#include "text/gguf_vocabulary.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/json.h"

namespace nibble::text {
namespace {

constexpr std::array<std::string_view, 7> kShownTokens = {
    "<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
    "<|tool_response>", "<tool_response|>", "<|\"|>"};

int32_t Number(GgufTokenType type) { return static_cast<int32_t>(type); }

GgufTokenType TypeOf(const AddedToken& token) {
  const bool is_shown = std::ranges::find(kShownTokens, token.content) != kShownTokens.end();
  return token.special && !is_shown ? GgufTokenType::kControl : GgufTokenType::kUserDefined;
}

}  // namespace

Result<GgufVocabulary> ToGgufVocabulary(const TokenizerFile& file, int n_rows,
                                        std::string_view where) {
  if (std::cmp_greater(file.tokens.size(), n_rows)) {
    return Fail("{}: {} ids, but the model has {}", where, file.tokens.size(), n_rows);
  }
  GgufVocabulary vocabulary;
  vocabulary.tokens = file.tokens;
  vocabulary.tokens.resize(static_cast<size_t>(n_rows));
  vocabulary.types.assign(static_cast<size_t>(n_rows), Number(GgufTokenType::kNormal));
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (!vocabulary.tokens[id].empty()) continue;
    vocabulary.tokens[id] = fmt::format("[PAD{}]", id);
    vocabulary.types[id] = Number(GgufTokenType::kUnused);
    if (file.ids.contains(vocabulary.tokens[id])) {
      return Fail("{}: the token {} stands in the way of id {}, which has none", where,
                  vocabulary.tokens[id], id);
    }
  }
  for (const TokenId id : file.byte_tokens) {
    vocabulary.types[static_cast<size_t>(id)] = Number(GgufTokenType::kByte);
  }
  for (const AddedToken& token : file.added_tokens) {
    vocabulary.types[static_cast<size_t>(token.id)] = Number(TypeOf(token));
  }
  vocabulary.merges.reserve(file.merges.size());
  for (const MergeRule& merge : file.merges) {
    const std::string& left = file.tokens[static_cast<size_t>(merge.left)];
    const std::string& right = file.tokens[static_cast<size_t>(merge.right)];
    if (left.contains(' ') || right.contains(' ')) {
      return Fail("{}: merge {}: GGUF cannot hold {} and {}, for the space in them", where,
                  vocabulary.merges.size(), QuoteForMessage(left), QuoteForMessage(right));
    }
    vocabulary.merges.push_back(fmt::format("{} {}", left, right));
  }
  return vocabulary;
}

Result<TokenizerFile> FromGgufVocabulary(const GgufVocabulary& vocabulary, std::string_view where) {
  if (vocabulary.types.size() != vocabulary.tokens.size()) {
    return Fail("{}: {} tokens, but types of {}", where, vocabulary.tokens.size(),
                vocabulary.types.size());
  }
  std::vector<std::string> tokens = vocabulary.tokens;
  std::vector<AddedToken> added;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) return Fail("{}: the token with id {} is empty", where, id);
    switch (static_cast<GgufTokenType>(vocabulary.types[id])) {
      case GgufTokenType::kNormal:
      case GgufTokenType::kByte:
        break;
      case GgufTokenType::kUnknown:
      case GgufTokenType::kControl:
      case GgufTokenType::kUserDefined:
        added.push_back({.id = static_cast<TokenId>(id),
                         .content = tokens[id],
                         .special = vocabulary.types[id] != Number(GgufTokenType::kUserDefined),
                         .normalized = false});
        break;
      case GgufTokenType::kUnused:
        tokens[id].clear();
        break;
      default:
        return Fail("{}: token {}: type {} is not supported", where, QuoteForMessage(tokens[id]),
                    vocabulary.types[id]);
    }
  }
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(vocabulary.merges.size());
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ');
    if (space == 0 || space == std::string::npos) {
      return Fail("{}: merge {}: expected two tokens and a space between them, found {}", where,
                  merges.size(), QuoteForMessage(merge));
    }
    merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return BuildTokenizerFile(std::move(tokens), merges, std::move(added), where);
}

}  // namespace nibble::text
