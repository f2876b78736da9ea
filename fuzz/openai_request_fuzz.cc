// Bodies of the server's endpoints: a request or an error, never a crash. Whatever is accepted has
// a prompt within the context; whatever is refused, a message that is JSON.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "server/generation_request.h"

namespace {

using nibble::server::ApiResult;

nibble::server::ServedModel Model() {
  nibble::server::ServedModel model{
      .names = {"tiny"},
      .tokenizer = nibble::text::Tokenizer::Open(NIBBLE_SOURCE_DIR "/models/tiny").value()};
  model.context_tokens = 256;
  model.n_token_ids = model.tokenizer.vocab_size();
  model.stop_ids = {1, 106, 50};
  model.grammars = std::make_unique<nibble::server::GrammarCache>(
      std::make_shared<const nibble::grammar::Vocabulary>(
          nibble::grammar::Vocabulary::Make(model.tokenizer).value()));
  return model;
}

template <typename T>
bool Holds(const ApiResult<T>& result) {
  if (result.has_value()) return true;
  CHECK(result.error().status >= 400 && result.error().status < 500);
  CHECK(nibble::Json::accept(nibble::server::ErrorBody(result.error())));
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const nibble::server::ServedModel model = Model();
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto request = nibble::server::ParseInvocation(body, model);
  if (Holds(request)) {
    for (const auto& prompt : request->prompts) {
      CHECK(!prompt.ids.empty() && prompt.ids.size() < 256);
    }
    if (request->new_constraint != nullptr) CHECK(request->new_constraint() != nullptr);
  }
  Holds(nibble::server::ParseTokenize(body, model));
  Holds(nibble::server::ParseDetokenize(body, model));
  return 0;
}
