#include "model/kv_cache.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/kernels.h"

namespace nibble::model {
namespace {

using kernels::kPageTokens;

constexpr PageKind kKinds[] = {PageKind::kSliding, PageKind::kFull};

}  // namespace

float* PagePool::Take() {
  ++n_in_use_;
  if (free_.empty()) {
    // Zeroed, so that kernels which load whole pages read defined values.
    pages_.push_back(std::make_unique<float[]>(static_cast<size_t>(page_floats_)));
    return pages_.back().get();
  }
  float* page = free_.back();
  free_.pop_back();
  return page;
}

void PagePool::Give(float* page) {
  CHECK(n_in_use_ > 0);
  --n_in_use_;
  free_.push_back(page);
}

KvCache::KvCache(const gemma::Config& config, bool keep_slid_out)
    : places_(static_cast<size_t>(config.n_layers())),
      window_tokens_(keep_slid_out ? 0 : config.sliding_window) {
  std::array<int64_t, 2> page_floats = {0, 0};
  for (int i = 0; i < config.n_layers(); ++i) {
    const gemma::LayerConfig& layer = config.layers[i];
    if (!config.OwnsKv(i)) {
      places_[i] = places_[layer.kv_owner_layer];
      continue;
    }
    const PageKind kind = layer.is_sliding ? PageKind::kSliding : PageKind::kFull;
    int64_t& end = page_floats[static_cast<size_t>(kind)];
    const int64_t head_stride = kPageTokens * layer.head_dim;
    const int64_t half = layer.n_kv_heads * head_stride;
    places_[i] = {
        .kind = kind, .k_offset = end, .v_offset = end + half, .head_stride = head_stride};
    end += 2 * half;
  }
  for (const PageKind kind : kKinds) pools_.emplace_back(page_floats[static_cast<size_t>(kind)]);
}

int64_t KvCache::bytes_in_use() const {
  int64_t bytes = 0;
  for (const PagePool& pool : pools_) bytes += pool.n_pages_in_use() * pool.page_bytes();
  return bytes;
}

KvSequence::KvSequence(KvSequence&& other) noexcept
    : cache_(other.cache_),
      n_tokens_(std::exchange(other.n_tokens_, 0)),
      pages_(std::exchange(other.pages_, {})) {}

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  cache_ = other.cache_;
  n_tokens_ = std::exchange(other.n_tokens_, 0);
  pages_ = std::exchange(other.pages_, {});
  return *this;
}

void KvSequence::Reserve(int64_t n_new_tokens) {
  const int64_t page_end = (n_tokens_ + n_new_tokens + kPageTokens - 1) / kPageTokens;
  for (const PageKind kind : kKinds) {
    PagePool& pool = cache_->pool(kind);
    if (pool.page_bytes() == 0) continue;  // no layer of this kind
    Pages& held = pages_[static_cast<size_t>(kind)];
    while (held.first_page + static_cast<int64_t>(held.pages.size()) < page_end) {
      held.pages.push_back(pool.Take());
    }
  }
}

void KvSequence::Commit(int64_t n_new_tokens) {
  n_tokens_ += n_new_tokens;
  if (cache_->window_tokens() == 0) return;
  // The next token stands at n_tokens_ and sees window - 1 tokens before itself.
  const int64_t first_seen = std::max<int64_t>(0, n_tokens_ - (cache_->window_tokens() - 1));
  Pages& held = pages_[static_cast<size_t>(PageKind::kSliding)];
  const int64_t n_dropped = std::min<int64_t>(first_seen / kPageTokens - held.first_page,
                                              static_cast<int64_t>(held.pages.size()));
  for (int64_t i = 0; i < n_dropped; ++i) cache_->pool(PageKind::kSliding).Give(held.pages[i]);
  held.pages.erase(held.pages.begin(), held.pages.begin() + n_dropped);
  held.first_page += n_dropped;
}

void KvSequence::Clear() {
  for (const PageKind kind : kKinds) {
    Pages& held = pages_[static_cast<size_t>(kind)];
    for (float* page : held.pages) cache_->pool(kind).Give(page);
    held = {};
  }
  n_tokens_ = 0;
}

}  // namespace nibble::model
