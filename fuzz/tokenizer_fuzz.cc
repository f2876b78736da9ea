// Any bytes as a tokenizer.json give an error or a tokenizer that encodes and decodes without harm.
// Input: the file, a zero byte, a text (without a zero byte: all of it is the file, and the text
// too).
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::text;
  if (size > (1u << 16)) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const auto tokenizer = Tokenizer::Parse(input.substr(0, end), "input");
  if (!tokenizer.has_value()) return 0;
  const auto ids = tokenizer->Encode(input.substr(end == std::string_view::npos ? 0 : end), true);
  for (const bool skip_special : {false, true}) {
    const auto text = tokenizer->Decode(ids, skip_special);
    CHECK(text.has_value());
    CHECK(IsValidUtf8(*text));
  }
  return 0;
}
