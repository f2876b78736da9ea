#include "model/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/float16.h"

namespace nibble::model {
namespace {

using kernels::kPageTokens;
using kernels::KvFormat;

constexpr auto kSliding = static_cast<size_t>(PageKind::kSliding);
constexpr auto kFull = static_cast<size_t>(PageKind::kFull);
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

// The places of all layers, and how many bytes a page of each kind has.
ByKind Arrange(const gemma::Config& config, KvFormat format, std::vector<KvCache::Place>& places) {
  ByKind page_bytes = {};
  for (int i = 0; i < config.n_layers(); ++i) {
    const gemma::LayerConfig& layer = config.layers[i];
    if (!config.OwnsKv(i)) {
      places[i] = places[layer.kv_owner_layer];
      continue;
    }
    const PageKind kind = layer.is_sliding ? PageKind::kSliding : PageKind::kFull;
    int64_t& end = page_bytes[static_cast<size_t>(kind)];
    const int64_t scale_bytes = format == KvFormat::kInt8 ? kPageTokens * 4 : 0;
    const int64_t head_stride = kPageTokens * layer.head_dim * ElementBytes(format) + scale_bytes;
    CHECK(head_stride % kAlignmentBytes == 0);
    const int64_t half = layer.n_kv_heads * head_stride;
    places[i] = {.kind = kind, .k_offset = end, .v_offset = end + half, .head_stride = head_stride};
    end += 2 * half;
  }
  return page_bytes;
}

int64_t PagesFor(int64_t n_tokens) { return (n_tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace

KvCache::KvCache(const gemma::Config& config, const KvOptions& options)
    : options_(options),
      window_tokens_(config.sliding_window),
      places_(static_cast<size_t>(config.n_layers())),
      pool_(Arrange(config, options.format, places_), options.budget_bytes) {}

int64_t KvCache::FirstSlidingPage(int64_t position) const {
  if (options_.keep_slid_out) return 0;
  return std::max<int64_t>(0, position - (window_tokens_ - 1)) / kPageTokens;
}

ByKind KvCache::PagesOf(int64_t n_tokens, int64_t n_step_tokens) const {
  ByKind n_pages = {PagesFor(n_tokens), PagesFor(n_tokens)};
  if (!options_.keep_slid_out) {
    // What the step's first token sees, and the step, on pages cut anywhere.
    const int64_t n_at_once = PagesFor(window_tokens_ - 1 + n_step_tokens) + 1;
    n_pages[kSliding] = std::min(n_pages[kSliding], n_at_once);
  }
  for (const PageKind kind : kPageKinds) {
    if (pool_.page_bytes(kind) == 0) n_pages[static_cast<size_t>(kind)] = 0;
  }
  return n_pages;
}

void KvCache::Store(const Place& place, int64_t head, int64_t position, std::byte* page,
                    std::span<const float> k, std::span<const float> v) const {
  const int64_t p = position % kPageTokens;
  const auto head_dim = static_cast<int64_t>(k.size());
  std::byte* k_place = page + place.k_offset + head * place.head_stride;
  std::byte* v_place = page + place.v_offset + head * place.head_stride;
  switch (options_.format) {
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

KvSequence::KvSequence(KvSequence&& other) noexcept
    : cache_(other.cache_),
      n_tokens_(std::exchange(other.n_tokens_, 0)),
      pages_(std::exchange(other.pages_, {})),
      held_(std::exchange(other.held_, {})),
      last_block_(std::exchange(other.last_block_, nullptr)),
      tail_(std::exchange(other.tail_, {})) {}

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  cache_ = other.cache_;
  n_tokens_ = std::exchange(other.n_tokens_, 0);
  pages_ = std::exchange(other.pages_, {});
  held_ = std::exchange(other.held_, {});
  last_block_ = std::exchange(other.last_block_, nullptr);
  tail_ = std::exchange(other.tail_, {});
  return *this;
}

ByKind KvSequence::n_pages() const {
  return {static_cast<int64_t>(held_[kSliding].size()), static_cast<int64_t>(held_[kFull].size())};
}

void KvSequence::Push(Page* page) {
  pages_[static_cast<size_t>(page->kind)].pages.push_back(page->bytes.get());
  held_[static_cast<size_t>(page->kind)].push_back(page);
}

int64_t KvSequence::TakePrefix(std::span<const int32_t> tokens) {
  CHECK(n_tokens_ == 0 && held_[kFull].empty());
  PagePool& pool = cache_->pool();
  if (!cache_->has_prefix_cache() || tokens.empty()) return 0;
  const bool needs_sliding = pool.page_bytes(PageKind::kSliding) > 0;
  std::vector<Block*> blocks;
  int64_t n_usable = 0;    // blocks
  int64_t first_kept = 0;  // block from which on all have their sliding pages
  const int64_t n_most = (static_cast<int64_t>(tokens.size()) - 1) / kPageTokens;
  while (static_cast<int64_t>(blocks.size()) < n_most) {
    const auto n = static_cast<int64_t>(blocks.size());
    Block* block = pool.FindBlock(blocks.empty() ? nullptr : blocks.back(),
                                  tokens.subspan(n * kPageTokens, kPageTokens));
    if (block == nullptr) break;
    blocks.push_back(block);
    if (needs_sliding && block->pages[kSliding] == nullptr) first_kept = n + 1;
    if (first_kept <= cache_->FirstSlidingPage((n + 1) * kPageTokens)) n_usable = n + 1;
  }
  if (n_usable == 0) return 0;
  n_tokens_ = n_usable * kPageTokens;
  last_block_ = blocks[n_usable - 1];
  pages_[kSliding].first_page = needs_sliding ? cache_->FirstSlidingPage(n_tokens_) : 0;
  for (int64_t i = 0; i < n_usable; ++i) {
    for (const PageKind kind : kPageKinds) {
      const auto k = static_cast<size_t>(kind);
      if (pool.page_bytes(kind) == 0 || i < pages_[k].first_page) continue;
      pool.Hold(blocks[i]->pages[k]);
      Push(blocks[i]->pages[k]);
    }
  }
  return n_tokens_;
}

bool KvSequence::Reserve(int64_t n_new_tokens) {
  const int64_t page_end = PagesFor(n_tokens_ + n_new_tokens);
  PagePool& pool = cache_->pool();
  ByKind n_wanted = {};
  for (const PageKind kind : kPageKinds) {
    const auto k = static_cast<size_t>(kind);
    if (pool.page_bytes(kind) == 0) continue;  // no layer of this kind
    const int64_t held_end = pages_[k].first_page + static_cast<int64_t>(held_[k].size());
    n_wanted[k] = std::max<int64_t>(0, page_end - held_end);
  }
  if (!pool.CanTake(n_wanted)) return false;
  for (const PageKind kind : kPageKinds) {
    for (int64_t i = 0; i < n_wanted[static_cast<size_t>(kind)]; ++i) Push(pool.Take(kind));
  }
  return true;
}

void KvSequence::Commit(std::span<const int32_t> new_tokens) {
  if (cache_->has_prefix_cache()) OwnWholePages(new_tokens);
  n_tokens_ += static_cast<int64_t>(new_tokens.size());
  DropSlidOut();
}

// Pages that became whole get a block, so that others find them.
void KvSequence::OwnWholePages(std::span<const int32_t> new_tokens) {
  PagePool& pool = cache_->pool();
  int64_t page = n_tokens_ / kPageTokens;
  for (const int32_t token : new_tokens) {
    tail_.push_back(token);
    if (tail_.size() < kPageTokens) continue;
    last_block_ = pool.MakeBlock(last_block_, tail_);
    tail_.clear();
    for (const PageKind kind : kPageKinds) {
      const auto k = static_cast<size_t>(kind);
      if (pool.page_bytes(kind) == 0) continue;
      const auto i = static_cast<size_t>(page - pages_[k].first_page);
      held_[k][i] = pool.Own(last_block_, held_[k][i]);
      pages_[k].pages[i] = held_[k][i]->bytes.get();
    }
    ++page;
  }
}

void KvSequence::DropSlidOut() {
  Pages& pages = pages_[kSliding];
  std::vector<Page*>& held = held_[kSliding];
  const int64_t n_dropped = std::min<int64_t>(
      cache_->FirstSlidingPage(n_tokens_) - pages.first_page, static_cast<int64_t>(held.size()));
  for (int64_t i = 0; i < n_dropped; ++i) cache_->pool().Release(held[i]);
  held.erase(held.begin(), held.begin() + n_dropped);
  pages.pages.erase(pages.pages.begin(), pages.pages.begin() + n_dropped);
  pages.first_page += n_dropped;
}

// The last pages first, full ones after sliding ones: the order in which they are evicted.
void KvSequence::Clear() {
  for (const PageKind kind : kPageKinds) {
    const auto k = static_cast<size_t>(kind);
    while (!held_[k].empty()) {
      cache_->pool().Release(held_[k].back());
      held_[k].pop_back();
    }
    pages_[k] = {};
  }
  n_tokens_ = 0;
  last_block_ = nullptr;
  tail_.clear();
}

}  // namespace nibble::model
