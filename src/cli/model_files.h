// What commands need of MODEL beside its weights: tokenizer, chat template, stop tokens; from a
// directory in Hugging Face layout or from a GGUF file, and how the one becomes the other.
// Tested by tests/interop/test_gguf.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"
#include "checkpoint/gguf.h"
#include "text/tokenizer.h"

namespace nibble::cli {

bool HasTokenizer(const std::filesystem::path& model);

Result<text::Tokenizer> OpenTokenizer(const std::filesystem::path& model);

// text::ClosesEmptyThought of the template that comes with the model.
Result<bool> ClosesEmptyThought(const std::filesystem::path& model);

// A directory's are those of its config files. A GGUF file's are its <eos> and <turn|>, and the
// token that hands over to a tool: what llama.cpp stops at.
Result<std::vector<int32_t>> StopTokens(const std::filesystem::path& model);

// tokenizer.json and the chat template of a directory as GGUF metadata; without tokenizer.json,
// what tells llama.cpp that there is no vocabulary. Without a template there is none in the file.
Result<std::vector<checkpoint::GgufEntry>> GgufTokenizer(const std::filesystem::path& dir);

}  // namespace nibble::cli
