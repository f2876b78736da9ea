#include "cli/model_files.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/mapped_file.h"
#include "checkpoint/gguf_file.h"
#include "engine/stop_tokens.h"
#include "gemma/config.h"
#include "text/chat.h"
#include "text/gguf_vocabulary.h"
#include "text/tokenizer_file.h"

namespace nibble::cli {
namespace {

using checkpoint::GgufArray;
using checkpoint::GgufEntry;
using checkpoint::GgufFile;

constexpr std::string_view kModelKey = "tokenizer.ggml.model";
constexpr std::string_view kModelName = "gemma4";
constexpr std::string_view kNoModelName = "none";
constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";
constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::string_view kTemplateKey = "tokenizer.chat_template";

// Metadata that names one token each.
constexpr std::pair<std::string_view, std::string_view> kSpecialTokens[] = {
    {"tokenizer.ggml.bos_token_id", "<bos>"},     {"tokenizer.ggml.eos_token_id", "<eos>"},
    {"tokenizer.ggml.eot_token_id", "<turn|>"},   {"tokenizer.ggml.unknown_token_id", "<unk>"},
    {"tokenizer.ggml.padding_token_id", "<pad>"}, {"tokenizer.ggml.mask_token_id", "<mask>"},
};

Result<text::Tokenizer> TokenizerOf(const GgufFile& file) {
  const auto& header = file.header();
  NIBBLE_ASSIGN_OR_RETURN(const auto model,
                          checkpoint::GetGguf<std::string>(header, kModelKey, file.where()));
  if (model != kModelName) {
    return Fail("{}: key {}: expected {}, found {}", file.where(), kModelKey, kModelName,
                QuoteForMessage(model));
  }
  NIBBLE_ASSIGN_OR_RETURN(const auto* tokens,
                          checkpoint::GetGgufArray<std::string>(header, kTokensKey, file.where()));
  NIBBLE_ASSIGN_OR_RETURN(const auto* types,
                          checkpoint::GetGgufArray<int32_t>(header, kTypesKey, file.where()));
  NIBBLE_ASSIGN_OR_RETURN(const auto* merges,
                          checkpoint::GetGgufArray<std::string>(header, kMergesKey, file.where()));
  NIBBLE_ASSIGN_OR_RETURN(text::TokenizerFile parsed,
                          text::FromGgufVocabulary({*tokens, *types, *merges}, file.where()));
  return text::Tokenizer(std::move(parsed));
}

}  // namespace

bool HasTokenizer(const std::filesystem::path& model) {
  std::error_code ignored;
  if (!checkpoint::IsGgufPath(model)) {
    return std::filesystem::exists(model / "tokenizer.json", ignored);
  }
  const auto file = GgufFile::Open(model);
  return file.has_value() && file->header().FindValue(kTokensKey) != nullptr;
}

Result<text::Tokenizer> OpenTokenizer(const std::filesystem::path& model) {
  if (!checkpoint::IsGgufPath(model)) return text::Tokenizer::Open(model);
  NIBBLE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model));
  return TokenizerOf(file);
}

Result<bool> ClosesEmptyThought(const std::filesystem::path& model) {
  if (!checkpoint::IsGgufPath(model)) {
    const bool is_directory = std::filesystem::is_directory(model);
    return text::ClosesEmptyThought(is_directory ? model : model.parent_path());
  }
  NIBBLE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model));
  NIBBLE_ASSIGN_OR_RETURN(const auto source, checkpoint::GetGguf<std::string>(
                                                 file.header(), kTemplateKey, file.where()));
  return text::TemplateClosesEmptyThought(source, file.where());
}

Result<std::vector<int32_t>> StopTokens(const std::filesystem::path& model) {
  if (!checkpoint::IsGgufPath(model)) return engine::ReadStopTokens(model);
  NIBBLE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model));
  std::set<int32_t> ids;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (file.header().FindValue(key) == nullptr) continue;
    NIBBLE_ASSIGN_OR_RETURN(const uint64_t id, GetGgufUnsigned(file.header(), key, file.where()));
    if (std::in_range<int32_t>(id)) ids.insert(static_cast<int32_t>(id));
  }
  if (file.header().FindValue(kTokensKey) != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, TokenizerOf(file));
    for (const std::string_view token : {"<eos>", "<turn|>", "<|tool_response>"}) {
      if (const auto id = tokenizer.IdOf(token)) ids.insert(*id);
    }
  }
  return std::vector<int32_t>(ids.begin(), ids.end());
}

Result<std::vector<GgufEntry>> GgufTokenizer(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "tokenizer.json";
  std::vector<GgufEntry> entries;
  if (!HasTokenizer(dir)) {
    entries.push_back({std::string(kModelKey), std::string(kNoModelName)});
    return entries;
  }
  NIBBLE_ASSIGN_OR_RETURN(const gemma::Config config, gemma::ReadConfig(dir));
  NIBBLE_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(path));
  NIBBLE_ASSIGN_OR_RETURN(const text::TokenizerFile file,
                          text::ParseTokenizerFile(json, path.string()));
  NIBBLE_ASSIGN_OR_RETURN(text::GgufVocabulary vocabulary,
                          text::ToGgufVocabulary(file, config.vocab_size, path.string()));
  entries.push_back({std::string(kModelKey), std::string(kModelName)});
  entries.push_back({std::string(kTokensKey), GgufArray{std::move(vocabulary.tokens)}});
  entries.push_back({std::string(kTypesKey), GgufArray{std::move(vocabulary.types)}});
  entries.push_back({std::string(kMergesKey), GgufArray{std::move(vocabulary.merges)}});
  for (const auto& [key, token] : kSpecialTokens) {
    const auto found = file.ids.find(token);
    if (found == file.ids.end()) continue;
    entries.push_back({std::string(key), static_cast<uint32_t>(found->second)});
  }
  entries.push_back({"tokenizer.ggml.add_space_prefix", false});
  entries.push_back({"tokenizer.ggml.add_bos_token", true});
  if (auto source = text::ReadChatTemplate(dir); source.has_value()) {
    entries.push_back({std::string(kTemplateKey), *std::move(source)});
  }
  return entries;
}

}  // namespace nibble::cli
