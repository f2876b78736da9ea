// Weights asked for ahead of time: while one pass over tiles computes, the next pass's tiles come
// into the second-level cache. Processors' own prefetchers stop at the ends of pages and start anew
// with each tile; on the machine where this was measured a matrix-vector product ran half as fast
// again with it. Never changes a result, and a prefetch past the end of a matrix does nothing.
#pragma once

#include "kernels/kernels.h"

namespace nibble::kernels::floats16 {
namespace {  // NOLINT(google-build-namespaces): local to each file that includes this

// Block `block_idx`'s share of the tiles that follow the n_tiles from tile_idx on.
[[maybe_unused]] inline void PrefetchNextTiles(const WeightView& w, int64_t tile_idx, int n_tiles,
                                               int64_t block_idx) {
  constexpr int64_t kLineBytes = 64;
  const int64_t share_bytes = w.tile_bytes / w.n_blocks;
  for (int i = 0; i < n_tiles; ++i) {
    const std::byte* share =
        w.tiles + (tile_idx + n_tiles + i) * w.tile_bytes + block_idx * share_bytes;
    for (int64_t at = 0; at < share_bytes; at += kLineBytes) {
      __builtin_prefetch(share + at, /*rw=*/0, /*locality=*/2);
    }
  }
}

}  // namespace
}  // namespace nibble::kernels::floats16
