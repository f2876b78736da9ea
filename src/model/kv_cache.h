// Keys and values of all sequences, in pages of 16 tokens.
//
// Only layers that own KV have a place (shared layers read their owner's). Layers come in two
// kinds, and a page of a kind holds its 16 tokens for all owning layers of that kind: a full page
// lives as long as its sequence; a sliding page goes back to the pool when no later token can see
// it, so that a sequence holds about window + step tokens of them, however long it gets. Values are
// float32 (the reference's precision), bf16 or int8 with a scale per token and head
// (kernels::AttentionCall). Tested by kv_cache_test.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gemma/config.h"
#include "kernels/kernels.h"

namespace nibble::model {

enum class PageKind { kSliding, kFull };

// Pages of one size, taken and given back; grows when none is free.
class PagePool {
 public:
  explicit PagePool(int64_t page_bytes) : page_bytes_(page_bytes) {}

  std::byte* Take();  // 64-byte aligned
  void Give(std::byte* page);

  int64_t page_bytes() const { return page_bytes_; }
  int64_t n_pages_in_use() const { return n_in_use_; }
  int64_t n_pages_allocated() const { return static_cast<int64_t>(pages_.size()); }

 private:
  struct Free {
    void operator()(std::byte* page) const;
  };

  int64_t page_bytes_;
  int64_t n_in_use_ = 0;
  std::vector<std::unique_ptr<std::byte, Free>> pages_;
  std::vector<std::byte*> free_;
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

  // keep_slid_out: never give sliding pages back before the sequence ends (what tests compare
  // with).
  KvCache(const gemma::Config& config, kernels::KvFormat format, bool keep_slid_out = false);

  kernels::KvFormat format() const { return format_; }

  // The place that a layer reads: its own, or its owner's.
  const Place& place(int layer_idx) const { return places_[layer_idx]; }
  PagePool& pool(PageKind kind) { return pools_[static_cast<size_t>(kind)]; }
  int64_t bytes_in_use() const;

  // Writes a token's K and V of one head, [head_dim] each, rounded to the cache's format.
  void Store(const Place& place, int64_t head, int64_t position, std::byte* page,
             std::span<const float> k, std::span<const float> v) const;

  // Tokens that sliding layers see, the current one included; 0: sliding pages are kept.
  int64_t window_tokens() const { return window_tokens_; }

 private:
  kernels::KvFormat format_;
  std::vector<Place> places_;
  std::vector<PagePool> pools_;  // by PageKind
  int64_t window_tokens_;
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

  // Makes room for the next n_new_tokens.
  void Reserve(int64_t n_new_tokens);
  // They are stored now; gives back the sliding pages that no later token sees.
  void Commit(int64_t n_new_tokens);
  // Gives everything back; the sequence is empty.
  void Clear();

 private:
  KvCache* cache_;
  int64_t n_tokens_ = 0;
  std::array<Pages, 2> pages_;  // by PageKind
};

}  // namespace nibble::model
