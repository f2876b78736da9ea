// Pages of keys and values, of two kinds, within one budget of bytes; and which of them hold known
// prefixes.
//
// A page has as many holders as sequences use it. A block is 16 tokens in their place behind a
// known prefix, and owns one page of each kind that holds them; blocks form a tree, found by the
// block before and the tokens themselves, so that nothing but equal token ids from the first on
// ever shares a page. Pages that only a block owns are evicted, the longest unused first, when
// memory is wanted. A sequence that holds a block's page holds the full pages of all blocks before,
// and lets go of the last first, so the oldest unused full page is always that of a leaf. Not
// thread-safe. Tested by kv_cache_test.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/kernels.h"

namespace nibble::model {

enum class PageKind : uint8_t { kSliding, kFull };
inline constexpr PageKind kPageKinds[] = {PageKind::kSliding, PageKind::kFull};
// A number for each kind.
using ByKind = std::array<int64_t, 2>;

struct Block;

struct Page {
  struct Free {
    void operator()(std::byte* bytes) const;
  };

  std::unique_ptr<std::byte, Free> bytes;  // 64-byte aligned
  PageKind kind = PageKind::kFull;
  size_t index = 0;  // among all pages of the kind
  int n_holders = 0;
  Block* block = nullptr;                  // its owner
  std::list<Page*>::iterator unused = {};  // where it has an owner and no holder
};

struct BlockKey {
  int64_t parent_id = 0;  // 0: nothing is before
  std::array<int32_t, kernels::kPageTokens> tokens = {};

  bool operator==(const BlockKey&) const = default;
};

struct Block {
  int64_t id = 0;  // never used twice
  BlockKey key;
  std::array<Page*, 2> pages = {};  // by PageKind; null: not kept, or none of the kind is needed
};

class PagePool {
 public:
  // page_bytes: 0 where no layer has pages of that kind; budget_bytes: 0 for no bound.
  PagePool(const ByKind& page_bytes, int64_t budget_bytes)
      : page_bytes_(page_bytes), budget_bytes_(budget_bytes) {}
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Whether so many pages can be taken, others being evicted for them.
  bool CanTake(const ByKind& n_pages) const;
  // A page with one holder and no block. There must be room.
  Page* Take(PageKind kind);
  // One more holder.
  void Hold(Page* page);
  // One holder less. Without any, a page that a block owns stays until it is evicted.
  void Release(Page* page);

  // The block of these 16 tokens behind `parent` (null: the first ones); null if there is none.
  Block* FindBlock(const Block* parent, std::span<const int32_t> tokens) const;
  // The same, made if there is none.
  Block* MakeBlock(const Block* parent, std::span<const int32_t> tokens);
  // Gives the caller's page to the block. Where the block has one, it holds the same values: the
  // caller's is released, and the caller holds the block's. Returns the page that the caller holds.
  Page* Own(Block* block, Page* page);

  int64_t page_bytes(PageKind kind) const { return page_bytes_[static_cast<size_t>(kind)]; }
  int64_t budget_bytes() const { return budget_bytes_; }
  // Pages with holders, pages that a block alone keeps, and all in memory.
  int64_t n_used(PageKind kind) const { return n_used_[static_cast<size_t>(kind)]; }
  int64_t n_cached(PageKind kind) const { return n_cached_[static_cast<size_t>(kind)]; }
  int64_t n_allocated(PageKind kind) const {
    return static_cast<int64_t>(pages_[static_cast<size_t>(kind)].size());
  }
  int64_t Bytes(const ByKind& n_pages) const;
  int64_t used_bytes() const { return Bytes(n_used_); }
  int64_t cached_bytes() const { return Bytes(n_cached_); }
  int64_t allocated_bytes() const {
    return Bytes({n_allocated(PageKind::kSliding), n_allocated(PageKind::kFull)});
  }

 private:
  struct HashKey {
    size_t operator()(const BlockKey& key) const;
  };

  void MakeRoom(PageKind kind);
  void Allocate(PageKind kind);
  void Free(Page* page);
  void Evict(Page* page);
  void MarkUnused(Page* page);
  void MarkUsed(Page* page);

  ByKind page_bytes_;
  int64_t budget_bytes_;
  ByKind n_used_ = {};
  ByKind n_cached_ = {};
  std::array<std::vector<std::unique_ptr<Page>>, 2> pages_;  // all, by kind
  std::array<std::vector<Page*>, 2> free_;                   // no holder, no block
  std::list<Page*> unused_;                                  // longest unused first
  std::unordered_map<BlockKey, std::unique_ptr<Block>, HashKey> blocks_;
  int64_t next_block_id_ = 1;
};

}  // namespace nibble::model
