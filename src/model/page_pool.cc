#include "model/page_pool.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace nibble::model {
namespace {

constexpr int64_t kPageAlignmentBytes = 64;

BlockKey KeyOf(const Block* parent, std::span<const int32_t> tokens) {
  CHECK(tokens.size() == kernels::kPageTokens);
  BlockKey key{.parent_id = parent != nullptr ? parent->id : 0};
  std::ranges::copy(tokens, key.tokens.begin());
  return key;
}

}  // namespace

void Page::Free::operator()(std::byte* memory) const { std::free(memory); }

size_t PagePool::HashKey::operator()(const BlockKey& key) const {
  auto hash = static_cast<uint64_t>(key.parent_id);
  for (const int32_t token : key.tokens) {
    hash = (hash ^ static_cast<uint64_t>(token)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

int64_t PagePool::Bytes(const ByKind& n_pages) const {
  return n_pages[0] * page_bytes_[0] + n_pages[1] * page_bytes_[1];
}

bool PagePool::CanTake(const ByKind& n_pages) const {
  return budget_bytes_ == 0 || used_bytes() + Bytes(n_pages) <= budget_bytes_;
}

Page* PagePool::Take(PageKind kind) {
  const auto k = static_cast<size_t>(kind);
  if (free_[k].empty()) MakeRoom(kind);
  if (free_[k].empty()) Allocate(kind);
  Page* page = free_[k].back();
  free_[k].pop_back();
  page->n_holders = 1;
  ++n_used_[k];
  return page;
}

void PagePool::Allocate(PageKind kind) {
  const auto k = static_cast<size_t>(kind);
  const auto n_bytes = static_cast<size_t>(page_bytes_[k]);
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(kPageAlignmentBytes, n_bytes));
  CHECK(bytes != nullptr);
  // Zeroed, so that kernels which load whole pages read defined values.
  std::memset(bytes, 0, n_bytes);
  auto page = std::make_unique<Page>();
  page->bytes.reset(bytes);
  page->kind = kind;
  page->index = pages_[k].size();
  free_[k].push_back(page.get());
  pages_[k].push_back(std::move(page));
}

void PagePool::Free(Page* page) {
  std::vector<std::unique_ptr<Page>>& pages = pages_[static_cast<size_t>(page->kind)];
  const size_t index = page->index;
  std::swap(pages[index], pages.back());
  pages[index]->index = index;
  pages.pop_back();
}

// Afterwards there is a free page of the kind, or memory for one within the budget.
void PagePool::MakeRoom(PageKind kind) {
  const auto k = static_cast<size_t>(kind);
  const size_t other = 1 - k;
  const auto is_full = [&] {
    return budget_bytes_ != 0 && allocated_bytes() + page_bytes_[k] > budget_bytes_;
  };
  while (free_[k].empty() && is_full()) {
    if (free_[other].empty()) {
      CHECK(!unused_.empty());
      Evict(unused_.front());
      continue;
    }
    Free(free_[other].back());
    free_[other].pop_back();
  }
}

void PagePool::Hold(Page* page) {
  if (page->n_holders++ == 0) MarkUsed(page);
}

void PagePool::Release(Page* page) {
  CHECK(page->n_holders > 0);
  if (--page->n_holders > 0) return;
  const auto k = static_cast<size_t>(page->kind);
  if (page->block != nullptr) {
    MarkUnused(page);
  } else {
    --n_used_[k];
    free_[k].push_back(page);
  }
}

void PagePool::MarkUnused(Page* page) {
  const auto k = static_cast<size_t>(page->kind);
  --n_used_[k];
  ++n_cached_[k];
  page->unused = unused_.insert(unused_.end(), page);
}

void PagePool::MarkUsed(Page* page) {
  const auto k = static_cast<size_t>(page->kind);
  ++n_used_[k];
  --n_cached_[k];
  unused_.erase(page->unused);
}

// A block that has lost its full page is of no more use, nor is its sliding page: who holds the
// one holds the other.
void PagePool::Evict(Page* page) {
  Block* block = page->block;
  for (Page* own : block->pages) {
    if (own == nullptr || (page->kind == PageKind::kSliding && own != page)) continue;
    CHECK(own->n_holders == 0);
    const auto k = static_cast<size_t>(own->kind);
    unused_.erase(own->unused);
    --n_cached_[k];
    own->block = nullptr;
    block->pages[k] = nullptr;
    free_[k].push_back(own);
  }
  if (block->pages[static_cast<size_t>(PageKind::kFull)] == nullptr) {
    blocks_.erase(BlockKey(block->key));
  }
}

Block* PagePool::FindBlock(const Block* parent, std::span<const int32_t> tokens) const {
  const auto found = blocks_.find(KeyOf(parent, tokens));
  return found == blocks_.end() ? nullptr : found->second.get();
}

Block* PagePool::MakeBlock(const Block* parent, std::span<const int32_t> tokens) {
  const BlockKey key = KeyOf(parent, tokens);
  std::unique_ptr<Block>& block = blocks_[key];
  if (block == nullptr) {
    block = std::make_unique<Block>(Block{.id = next_block_id_++, .key = key});
  }
  return block.get();
}

Page* PagePool::Own(Block* block, Page* page) {
  Page*& own = block->pages[static_cast<size_t>(page->kind)];
  if (own == page) return page;
  if (own == nullptr) {
    own = page;
    page->block = block;
    return page;
  }
  Hold(own);
  Release(page);
  return own;
}

}  // namespace nibble::model
