#include "text/tokenizer_file.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/json.h"
#include "text/tokenizer_events.h"

namespace nibble::text {
namespace {

// Bounds the memory that an id in a damaged file can ask for; Gemma's vocabulary has 2^18 entries.
constexpr int64_t kMaxVocabSize = int64_t{1} << 22;

constexpr std::string_view kMark = "\u2581";  // stands for a space in tokens

struct Setting {
  std::string_view key;
  std::initializer_list<Json> allowed;  // null: may be absent
};

std::string Shortened(const Json& value) {
  std::string text = value.dump();
  if (text.size() > 200) text = text.substr(0, 200) + "...";
  return text;
}

Status CheckSettings(const Json& object, std::initializer_list<Setting> settings,
                     std::initializer_list<std::string_view> read_elsewhere,
                     std::string_view where) {
  for (const Setting& setting : settings) {
    const auto found = object.find(setting.key);
    const Json value = found == object.end() ? Json() : *found;
    if (std::ranges::find(setting.allowed, value) == setting.allowed.end()) {
      return Fail("{}{}: {} is not supported, expected {}", where, setting.key, Shortened(value),
                  setting.allowed.begin()->dump());
    }
  }
  for (const auto& [key, value] : object.items()) {
    const bool known = std::ranges::find(settings, key, &Setting::key) != settings.end() ||
                       std::ranges::find(read_elsewhere, key) != read_elsewhere.end();
    if (!known) return Fail("{}{}: unknown key", where, key);
  }
  return {};
}

// The normaliser leaves no space, so that splitting at spaces, which Gemma's file asks for, does
// nothing.
Status CheckPipeline(const Json& file, std::string_view where) {
  const Json space = {{"String", " "}};
  const Json mark = {{"String", kMark}};
  const Json normalizer = {{"type", "Replace"}, {"pattern", space}, {"content", kMark}};
  const Json split = {
      {"type", "Split"}, {"pattern", space}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  const Json replace = {{"type", "Replace"}, {"pattern", mark}, {"content", " "}};
  const Json fallback = {{"type", "ByteFallback"}};
  const Json fuse = {{"type", "Fuse"}};
  Json decoder = {{"type", "Sequence"}};
  decoder["decoders"] = Json::array({replace, fallback, fuse});
  return CheckSettings(file,
                       {{"version", {"1.0"}},
                        {"truncation", {Json()}},
                        {"padding", {Json()}},
                        {"normalizer", {normalizer}},
                        {"pre_tokenizer", {split, Json()}},
                        {"decoder", {decoder}}},
                       {"added_tokens", "model", "post_processor"}, fmt::format("{}: ", where));
}

Status CheckModel(const Json& model, std::string_view where) {
  return CheckSettings(model,
                       {{"type", {"BPE"}},
                        {"dropout", {Json(), 0.0}},
                        {"continuing_subword_prefix", {Json(), ""}},
                        {"end_of_word_suffix", {Json(), ""}},
                        {"byte_fallback", {true}},
                        {"ignore_merges", {false, Json()}}},
                       // With all byte tokens there, no text is unknown.
                       {"unk_token", "fuse_unk", "vocab", "merges"},
                       fmt::format("{}: model.", where));
}

Status PlaceToken(std::string token, int64_t id, std::string_view where, TokenizerFile* file) {
  if (id < 0 || id >= kMaxVocabSize) {
    return Fail("{}: token {}: id {} is outside 0..{}", where, Json(token).dump(), id,
                kMaxVocabSize - 1);
  }
  const auto place = static_cast<size_t>(id);
  if (place >= file->tokens.size()) file->tokens.resize(place + 1);
  if (!file->tokens[place].empty()) {
    return Fail("{}: tokens {} and {} share the id {}", where, Json(file->tokens[place]).dump(),
                Json(token).dump(), id);
  }
  if (token.empty()) return Fail("{}: the token with id {} is empty", where, id);
  file->tokens[place] = std::move(token);
  return {};
}

Result<AddedToken> ReadAddedToken(const Json& entry, std::string_view where) {
  const auto has = [&](std::string_view key, Json::value_t type) {
    const auto found = entry.find(key);
    return found != entry.end() && found->type() == type;
  };
  if (!entry.is_object() || !has("id", Json::value_t::number_integer) ||
      !has("content", Json::value_t::string) || !has("special", Json::value_t::boolean) ||
      !has("normalized", Json::value_t::boolean)) {
    return Fail("{}: expected id, content, special and normalized, found {}", where,
                Shortened(entry));
  }
  NIBBLE_RETURN_IF_ERROR(
      CheckSettings(entry, {{"single_word", {false}}, {"lstrip", {false}}, {"rstrip", {false}}},
                    {"id", "content", "special", "normalized"}, fmt::format("{}.", where)));
  const auto id = entry["id"].get<int64_t>();
  if (id < 0 || id >= kMaxVocabSize) return Fail("{}: id {} is out of range", where, id);
  AddedToken token{static_cast<TokenId>(id), entry["content"].get<std::string>(),
                   entry["special"].get<bool>(), entry["normalized"].get<bool>()};
  if (token.content.empty()) return Fail("{}: the content is empty", where);
  return token;
}

// Added tokens may name entries of the vocabulary (Gemma's do) or extend it.
Status PlaceAddedTokens(const Json& list, std::string_view where, TokenizerFile* file) {
  if (!list.is_array()) return Fail("{}: added_tokens: expected a list", where);
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("{}: added_tokens[{}]", where, i);
    NIBBLE_ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(list[i], place));
    const auto repeats = [&](const AddedToken& other) { return other.content == token.content; };
    if (std::ranges::any_of(file->added_tokens, repeats)) {
      return Fail("{}: {} is listed twice", place, Json(token.content).dump());
    }
    const auto id = static_cast<size_t>(token.id);
    if (id >= file->tokens.size() || file->tokens[id] != token.content) {
      NIBBLE_RETURN_IF_ERROR(PlaceToken(token.content, token.id, place, file));
    }
    file->added_tokens.push_back(std::move(token));
  }
  return {};
}

Status IndexTokens(std::string_view where, TokenizerFile* file) {
  file->ids.reserve(file->tokens.size());
  for (size_t id = 0; id < file->tokens.size(); ++id) {
    if (file->tokens[id].empty()) continue;
    const auto [entry, fresh] = file->ids.emplace(file->tokens[id], static_cast<TokenId>(id));
    if (!fresh) {
      return Fail("{}: token {} has two ids, {} and {}", where, Json(file->tokens[id]).dump(),
                  entry->second, id);
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = fmt::format("<0x{:02X}>", byte);
    const auto found = file->ids.find(name);
    if (found == file->ids.end())
      return Fail("{}: model.vocab lacks the byte token {}", where, name);
    file->byte_tokens.push_back(found->second);
  }
  return {};
}

Status ResolveMerges(const std::vector<std::pair<std::string, std::string>>& merges,
                     std::string_view where, TokenizerFile* file) {
  file->merges.reserve(merges.size());
  const auto id_of = [&](const std::string& token) -> Result<TokenId> {
    const auto found = file->ids.find(token);
    if (found != file->ids.end()) return found->second;
    return Fail("{}: model.merges[{}]: {} is not in the vocabulary", where, file->merges.size(),
                Json(token).dump());
  };
  TokenId merged_id = -1;
  for (const auto& [left, right] : merges) {
    NIBBLE_ASSIGN_OR_RETURN(const TokenId left_id, id_of(left));
    NIBBLE_ASSIGN_OR_RETURN(const TokenId right_id, id_of(right));
    // Neighbours in the list are mostly ways to the same token: one look-up less for them.
    if (merged_id < 0 || file->tokens[static_cast<size_t>(merged_id)] != left + right) {
      NIBBLE_ASSIGN_OR_RETURN(merged_id, id_of(left + right));
    }
    file->merges.push_back({left_id, right_id, merged_id});
  }
  return {};
}

// The post-processor may only put <bos> in front of a text; what it does with pairs is not used.
Status FindBos(const Json& post_processor, std::string_view where, TokenizerFile* file) {
  const auto bos = file->ids.find("<bos>");
  if (bos == file->ids.end()) return Fail("{}: no token <bos>", where);
  file->bos_id = bos->second;
  if (post_processor.is_null()) return {};
  Json expected_special = {{"id", "<bos>"}, {"tokens", {"<bos>"}}};
  expected_special["ids"] = Json::array({file->bos_id});
  const Json bos_item = {{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}};
  const Json text_item = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  return CheckSettings(post_processor,
                       {{"type", {"TemplateProcessing"}},
                        {"single", {Json::array({bos_item, text_item})}},
                        {"special_tokens", {Json{{"<bos>", expected_special}}}}},
                       {"pair"}, fmt::format("{}: post_processor.", where));
}

}  // namespace

Result<TokenizerFile> ParseTokenizerFile(std::string_view json, std::string_view where) {
  NIBBLE_ASSIGN_OR_RETURN(TokenizerEvents events, ReadTokenizerEvents(json, where));
  NIBBLE_RETURN_IF_ERROR(CheckPipeline(events.rest, where));
  const Json model = events.rest.value("model", Json());
  if (!model.is_object()) return Fail("{}: model: expected an object", where);
  NIBBLE_RETURN_IF_ERROR(CheckModel(model, where));
  TokenizerFile file;
  file.tokens.reserve(events.vocab.size());
  for (auto& [token, id] : events.vocab) {
    NIBBLE_RETURN_IF_ERROR(PlaceToken(std::move(token), id, where, &file));
  }
  NIBBLE_RETURN_IF_ERROR(
      PlaceAddedTokens(events.rest.value("added_tokens", Json::array()), where, &file));
  NIBBLE_RETURN_IF_ERROR(IndexTokens(where, &file));
  NIBBLE_RETURN_IF_ERROR(ResolveMerges(events.merges, where, &file));
  NIBBLE_RETURN_IF_ERROR(FindBos(events.rest.value("post_processor", Json()), where, &file));
  return file;
}

Result<TokenizerFile> BuildTokenizerFile(
    std::vector<std::string> tokens, const std::vector<std::pair<std::string, std::string>>& merges,
    std::vector<AddedToken> added_tokens, std::string_view where) {
  TokenizerFile file;
  file.tokens = std::move(tokens);
  file.added_tokens = std::move(added_tokens);
  NIBBLE_RETURN_IF_ERROR(IndexTokens(where, &file));
  NIBBLE_RETURN_IF_ERROR(ResolveMerges(merges, where, &file));
  NIBBLE_RETURN_IF_ERROR(FindBos(Json(), where, &file));
  return file;
}

}  // namespace nibble::text
