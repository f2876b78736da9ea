// Keys and values of all sequences, in pages of 16 tokens.
//
// Only layers that own KV have a place (shared layers read their owner's). Layers come in two
// kinds, and a page of a kind holds its 16 tokens for all owning layers of that kind: a full page
// lives as long as its sequence; a sliding page goes back to the pool when no later token can see
// it, so that a sequence holds about window + step tokens of them, however long it gets. With a
// prefix cache, whole pages are shared by all sequences that begin alike, and stay behind them: a
// prefix is used again as far as the sliding pages that its next token sees still exist. Values are
// float32 (the reference's precision), bf16 or int8 with a scale per token and head
// (kernels::AttentionCall). Tested by kv_cache_test.cc and engine_test.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gemma/config.h"
#include "kernels/kernels.h"
#include "model/page_pool.h"

namespace nibble::model {

struct KvOptions {
  kernels::KvFormat format = kernels::KvFormat::kBf16;
  // Never give sliding pages back before the sequence ends: what tests compare with.
  bool keep_slid_out = false;
  int64_t budget_bytes = 0;  // of all pages; 0: no bound
  bool prefix_cache = false;
};

// Not thread-safe: the engine's thread alone uses it. Must outlive its sequences.
class KvCache {
 public:
  // Where a layer's K and V stand in a page of its kind, in bytes; KV head j at + j * head_stride.
  struct Place {
    PageKind kind = PageKind::kFull;
    int64_t k_offset = 0;     // [J, C, 16 tokens]
    int64_t v_offset = 0;     // [J, 16 tokens, C]
    int64_t head_stride = 0;  // of a head's K or V with its scales
  };

  KvCache(const gemma::Config& config, const KvOptions& options);

  kernels::KvFormat format() const { return options_.format; }
  bool has_prefix_cache() const { return options_.prefix_cache; }

  // The place that a layer reads: its own, or its owner's.
  const Place& place(int layer_idx) const { return places_[layer_idx]; }
  PagePool& pool() { return pool_; }
  const PagePool& pool() const { return pool_; }
  // Pages that a sequence of so many tokens holds at most, if a step adds up to n_step_tokens.
  ByKind PagesOf(int64_t n_tokens, int64_t n_step_tokens) const;

  // Writes a token's K and V of one head, [head_dim] each, rounded to the cache's format.
  void Store(const Place& place, int64_t head, int64_t position, std::byte* page,
             std::span<const float> k, std::span<const float> v) const;

  // Where the sliding pages begin that a token at `position` sees.
  int64_t FirstSlidingPage(int64_t position) const;

 private:
  KvOptions options_;
  int64_t window_tokens_;
  std::vector<Place> places_;
  PagePool pool_;
};

// One sequence's pages. Move-only; gives its pages back when it goes.
class KvSequence {
 public:
  struct Pages {
    int64_t first_page = 0;  // pages[i] holds positions from (first_page + i) * 16
    std::vector<std::byte*> pages;
  };

  explicit KvSequence(KvCache& cache) : cache_(&cache) {}
  KvSequence(KvSequence&& other) noexcept;
  KvSequence& operator=(KvSequence&& other) noexcept;
  ~KvSequence() { Clear(); }

  // Tokens whose K and V are stored.
  int64_t n_tokens() const { return n_tokens_; }
  const Pages& pages(PageKind kind) const { return pages_[static_cast<size_t>(kind)]; }
  ByKind n_pages() const;

  // Takes the longest known prefix of `tokens` from the cache, but never all of them: the last
  // one's logits are wanted. The sequence must be empty. Returns its number of tokens.
  int64_t TakePrefix(std::span<const int32_t> tokens);
  // Makes room for the next n_new_tokens. false: there is none, nothing is changed.
  bool Reserve(int64_t n_new_tokens);
  // K and V of these are stored now; gives back the sliding pages that no later token sees.
  void Commit(std::span<const int32_t> new_tokens);
  // Gives everything back; the sequence is empty.
  void Clear();

 private:
  void Push(Page* page);
  void OwnWholePages(std::span<const int32_t> new_tokens);
  void DropSlidOut();

  KvCache* cache_;
  int64_t n_tokens_ = 0;
  std::array<Pages, 2> pages_;              // by PageKind
  std::array<std::vector<Page*>, 2> held_;  // the same pages
  // With a prefix cache:
  Block* last_block_ = nullptr;
  std::vector<int32_t> tail_;  // tokens behind it, less than a page
};

}  // namespace nibble::model
