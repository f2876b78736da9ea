#include "model/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/float16.h"

namespace nibble::model {
namespace {

using kernels::kPageTokens;
using kernels::KvFormat;

constexpr PageKind kKinds[] = {PageKind::kSliding, PageKind::kFull};
constexpr int64_t kAlignmentBytes = 64;

int64_t ElementBytes(KvFormat format) {
  return format == KvFormat::kF32 ? 4 : (format == KvFormat::kBf16 ? 2 : 1);
}

// place[first + i * stride] = convert(values[i])
template <typename T, typename Convert>
void StoreAs(std::span<const float> values, const Convert& convert, std::byte* place, int64_t first,
             int64_t stride) {
  T* elements = reinterpret_cast<T*>(place) + first;
  for (size_t i = 0; i < values.size(); ++i) {
    elements[static_cast<int64_t>(i) * stride] = convert(values[i]);
  }
}

// Rounded to the largest size's 127th part; the scale of position p stands behind the page's
// values. Values that are not finite (broken weights) count as 0.
void StoreInt8(std::span<const float> values, std::byte* place, int64_t p, int64_t first,
               int64_t stride) {
  float peak = 0;
  for (const float value : values) {
    if (std::isfinite(value)) peak = std::max(peak, std::fabs(value));
  }
  const float scale = peak / 127.0f;
  const auto round = [&](float value) {
    return std::isfinite(value) && scale > 0 ? static_cast<int8_t>(std::lrint(value / scale))
                                             : int8_t{0};
  };
  StoreAs<int8_t>(values, round, place, first, stride);
  float* scales =
      reinterpret_cast<float*>(place + static_cast<int64_t>(values.size()) * kPageTokens);
  scales[p] = scale;
}

}  // namespace

void PagePool::Free::operator()(std::byte* page) const { std::free(page); }

std::byte* PagePool::Take() {
  ++n_in_use_;
  if (free_.empty()) {
    const auto bytes = static_cast<size_t>(page_bytes_);
    pages_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kAlignmentBytes, bytes)));
    CHECK(pages_.back() != nullptr);
    // Zeroed, so that kernels which load whole pages read defined values.
    std::memset(pages_.back().get(), 0, bytes);
    return pages_.back().get();
  }
  std::byte* page = free_.back();
  free_.pop_back();
  return page;
}

void PagePool::Give(std::byte* page) {
  CHECK(n_in_use_ > 0);
  --n_in_use_;
  free_.push_back(page);
}

KvCache::KvCache(const gemma::Config& config, KvFormat format, bool keep_slid_out)
    : format_(format),
      places_(static_cast<size_t>(config.n_layers())),
      window_tokens_(keep_slid_out ? 0 : config.sliding_window) {
  std::array<int64_t, 2> page_bytes = {0, 0};
  for (int i = 0; i < config.n_layers(); ++i) {
    const gemma::LayerConfig& layer = config.layers[i];
    if (!config.OwnsKv(i)) {
      places_[i] = places_[layer.kv_owner_layer];
      continue;
    }
    const PageKind kind = layer.is_sliding ? PageKind::kSliding : PageKind::kFull;
    int64_t& end = page_bytes[static_cast<size_t>(kind)];
    const int64_t scale_bytes = format == KvFormat::kInt8 ? kPageTokens * 4 : 0;
    const int64_t head_stride = kPageTokens * layer.head_dim * ElementBytes(format) + scale_bytes;
    CHECK(head_stride % kAlignmentBytes == 0);
    const int64_t half = layer.n_kv_heads * head_stride;
    places_[i] = {
        .kind = kind, .k_offset = end, .v_offset = end + half, .head_stride = head_stride};
    end += 2 * half;
  }
  for (const PageKind kind : kKinds) pools_.emplace_back(page_bytes[static_cast<size_t>(kind)]);
}

void KvCache::Store(const Place& place, int64_t head, int64_t position, std::byte* page,
                    std::span<const float> k, std::span<const float> v) const {
  const int64_t p = position % kPageTokens;
  const auto head_dim = static_cast<int64_t>(k.size());
  std::byte* k_place = page + place.k_offset + head * place.head_stride;
  std::byte* v_place = page + place.v_offset + head * place.head_stride;
  switch (format_) {
    case KvFormat::kF32:
      StoreAs<float>(k, [](float x) { return x; }, k_place, p, kPageTokens);
      StoreAs<float>(v, [](float x) { return x; }, v_place, p * head_dim, 1);
      break;
    case KvFormat::kBf16:
      StoreAs<uint16_t>(k, FloatToBf16, k_place, p, kPageTokens);
      StoreAs<uint16_t>(v, FloatToBf16, v_place, p * head_dim, 1);
      break;
    case KvFormat::kInt8:
      StoreInt8(k, k_place, p, p, kPageTokens);
      StoreInt8(v, v_place, p, p * head_dim, 1);
      break;
  }
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
    for (std::byte* page : held.pages) cache_->pool(kind).Give(page);
    held = {};
  }
  n_tokens_ = 0;
}

}  // namespace nibble::model
