// Any text as config.json: no crash, no large allocation, and an accepted config is one that the
// other rooms can rely on.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "gemma/config.h"
#include "gemma/tensors.h"

namespace {

using nibble::gemma::Config;
using nibble::gemma::LayerConfig;
using nibble::gemma::TensorSpec;

void CheckAccepted(const Config& config) {
  CHECK(config.n_layers() >= 1 && config.n_layers() <= 1024);
  for (int i = 0; i < config.n_layers(); ++i) {
    const LayerConfig& layer = config.layers[i];
    CHECK(layer.head_dim > 0 && layer.head_dim % 2 == 0);
    CHECK(layer.n_kv_heads > 0 && config.n_heads % layer.n_kv_heads == 0);
    CHECK(layer.n_rotating_pairs >= 0 && layer.n_rotating_pairs <= layer.head_dim / 2);
    CHECK(layer.rope_theta > 0);
    CHECK(layer.kv_owner_layer >= 0 && layer.kv_owner_layer <= i);
    const LayerConfig& owner = config.layers[layer.kv_owner_layer];
    CHECK(config.OwnsKv(layer.kv_owner_layer) && owner.is_sliding == layer.is_sliding);
    CHECK(owner.head_dim == layer.head_dim && owner.n_kv_heads == layer.n_kv_heads);
  }
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    int64_t n_elements = 1;
    for (const int64_t dim : spec.shape) {
      CHECK(dim > 0 && !__builtin_mul_overflow(n_elements, dim, &n_elements));
    }
    CHECK(n_elements < int64_t{1} << 60);  // leaves room for bytes
    CHECK(nibble::gemma::TextName(spec.name) == spec.name);
    CHECK(!IsIgnoredLeftover(config, spec.name));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), size_bytes);
  (void)nibble::gemma::PartOf(text);
  auto json = nibble::ParseJson(text, "fuzz");
  if (!json.has_value()) {
    CHECK(json.error().message.find('\n') == std::string::npos);
    return 0;
  }
  const auto config = nibble::gemma::ParseConfig(*std::move(json), "fuzz");
  if (config.has_value()) {
    CheckAccepted(*config);
  } else {
    CHECK(config.error().message.find('\n') == std::string::npos);
  }
  return 0;
}
