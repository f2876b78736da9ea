#include "text/tokenizer.h"

#include <span>
#include <utility>

#include "base/check.h"
#include "base/mapped_file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/detokenizer.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace nibble::text {
namespace {

std::string Normalised(std::string_view text) {
  std::string normalised;
  normalised.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ') {
      normalised += "\u2581";
    } else {
      normalised += c;
    }
  }
  return normalised;
}

AddedTokenFinder Finder(const std::vector<AddedToken>& tokens, bool normalised) {
  std::vector<std::string> contents;
  contents.reserve(tokens.size());
  for (const AddedToken& token : tokens) {
    contents.push_back(normalised ? Normalised(token.content) : token.content);
  }
  std::vector<std::pair<std::string_view, TokenId>> patterns;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].normalized == normalised) patterns.emplace_back(contents[i], tokens[i].id);
  }
  return AddedTokenFinder(patterns);
}

Bpe BuildBpe(const TokenizerFile& file) {
  BpeVocabulary vocabulary{{}, file.merges, file.byte_tokens};
  vocabulary.tokens.assign(file.tokens.begin(), file.tokens.end());
  return Bpe(vocabulary);
}

// Calls on_text for what lies between the matches of `finder`, on_token for each match, in order.
template <typename OnText, typename OnToken>
void Split(const AddedTokenFinder& finder, std::string_view text, OnText on_text,
           OnToken on_token) {
  size_t offset = 0;
  while (const auto match = finder.Find(text, offset)) {
    if (match->offset > offset) on_text(text.substr(offset, match->offset - offset));
    on_token(match->id);
    offset = match->offset + match->n_bytes;
  }
  if (offset < text.size()) on_text(text.substr(offset));
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerFile parsed)
      : file(std::move(parsed)),
        raw(Finder(file.added_tokens, false)),
        normalised(Finder(file.added_tokens, true)),
        bpe(BuildBpe(file)),
        is_special(file.tokens.size()) {
    file.merges = {};  // bpe has its own table of them
    for (const AddedToken& token : file.added_tokens) {
      // In the reference a normalised token decodes as its normalised spelling, which no list of
      // special tokens holds unless the two are equal.
      const bool is_listed = !token.normalized || Normalised(token.content) == token.content;
      is_special[static_cast<size_t>(token.id)] = token.special && is_listed;
    }
  }

  TokenizerFile file;
  AddedTokenFinder raw;
  AddedTokenFinder normalised;
  Bpe bpe;
  std::vector<bool> is_special;  // by id
};

Tokenizer::Tokenizer(TokenizerFile file) : impl_(std::make_unique<Impl>(std::move(file))) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Open(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto file = std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  NIBBLE_ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::Open(file));
  const std::span<const std::byte> bytes = mapped.bytes();
  return Parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file.string());
}

Result<Tokenizer> Tokenizer::Parse(std::string_view json, std::string_view where) {
  NIBBLE_ASSIGN_OR_RETURN(TokenizerFile file, ParseTokenizerFile(json, where));
  return Tokenizer(std::move(file));
}

std::vector<TokenId> Tokenizer::Encode(std::string_view text, bool add_bos) const {
  std::vector<TokenId> ids;
  if (add_bos) ids.push_back(bos_id());
  std::string repaired;
  if (!IsValidUtf8(text)) text = repaired = ReplaceInvalidUtf8(text);
  const auto add_token = [&](TokenId id) { ids.push_back(id); };
  const auto add_text = [&](std::string_view part) { impl_->bpe.Encode(part, &ids); };
  const auto add_raw = [&](std::string_view part) {
    Split(impl_->normalised, Normalised(part), add_text, add_token);
  };
  Split(impl_->raw, text, add_raw, add_token);
  return ids;
}

Result<std::string> Tokenizer::Decode(const std::vector<TokenId>& ids, bool skip_special) const {
  Detokenizer detokenizer(*this, skip_special);
  std::string text;
  for (const TokenId id : ids) {
    if (!Contains(id)) {
      return Fail("token id {} is not in the vocabulary of {} entries", id, vocab_size());
    }
    text += detokenizer.Push(id);
  }
  return text + detokenizer.Flush();
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->file.tokens.size()); }

std::optional<TokenId> Tokenizer::IdOf(std::string_view token) const {
  const auto found = impl_->file.ids.find(token);
  if (found == impl_->file.ids.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::Contains(TokenId id) const {
  return id >= 0 && id < vocab_size() && !impl_->file.tokens[static_cast<size_t>(id)].empty();
}

std::string_view Tokenizer::TokenOf(TokenId id) const {
  CHECK(Contains(id));
  return impl_->file.tokens[static_cast<size_t>(id)];
}

std::optional<uint8_t> Tokenizer::ByteOf(TokenId id) const {
  const std::string_view token = TokenOf(id);
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    byte = static_cast<uint8_t>(byte * 16 + digit);
  }
  return byte;
}

bool Tokenizer::IsSpecial(TokenId id) const {
  CHECK(Contains(id));
  return impl_->is_special[static_cast<size_t>(id)];
}

TokenId Tokenizer::bos_id() const { return impl_->file.bos_id; }

}  // namespace nibble::text
