#include "model/attention.h"

#include <algorithm>

namespace nibble::model {

using kernels::kPageTokens;

void Attention::Run(int layer_idx, const LayerWeights& w, std::span<const StepSequence> sequences,
                    std::span<const Row> rows, const RopeTable& rope, LinearInput& x, float* out) {
  const gemma::LayerConfig& layer = config_.layers[layer_idx];
  const auto n_rows = static_cast<int64_t>(rows.size());
  if (config_.OwnsKv(layer_idx)) StoreKv(layer_idx, w, sequences, rows, rope, x);
  const int64_t row_width = int64_t{config_.n_heads} * layer.head_dim;
  q_.resize(static_cast<size_t>(n_rows * row_width));
  attended_.resize(q_.size());
  ops_.Linear(w.q_proj, x, q_.data());
  NormAndRotate(w.q_norm, config_.n_heads, layer.head_dim, rows, rope, q_.data());
  LookBack(layer_idx, sequences, rows);
  attended_input_.Assign(attended_.data(), n_rows, row_width);
  ops_.Linear(w.o_proj, attended_input_, out);
}

void Attention::NormAndRotate(const std::vector<float>& norm, int64_t n_heads, int64_t head_dim,
                              std::span<const Row> rows, const RopeTable& rope, float* x) const {
  const auto n_rows = static_cast<int64_t>(rows.size());
  const int64_t width = n_heads * head_dim;
  ops_.Split(n_rows, n_rows * width * 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = x + r * width;
      ops_.kernels.rms_norm(row, norm.data(), n_heads, head_dim, config_.rms_norm_eps, row);
      const int token = rows[r].token_idx;
      ops_.kernels.rotate(row, n_heads, head_dim, rope.cos(token), rope.sin(token), rope.n_pairs());
    }
  });
}

void Attention::StoreKv(int layer_idx, const LayerWeights& w,
                        std::span<const StepSequence> sequences, std::span<const Row> rows,
                        const RopeTable& rope, LinearInput& x) {
  const gemma::LayerConfig& layer = config_.layers[layer_idx];
  const int64_t n_rows = static_cast<int64_t>(rows.size());
  const int64_t n_heads = layer.n_kv_heads;
  const int64_t head_dim = layer.head_dim;
  const int64_t width = n_heads * head_dim;
  k_.resize(static_cast<size_t>(n_rows * width));
  v_.resize(k_.size());
  ops_.Linear(w.k_proj, x, k_.data());
  if (layer.k_eq_v) {
    v_ = k_;  // before k_norm and RoPE
  } else {
    ops_.Linear(w.v_proj, x, v_.data());
  }
  NormAndRotate(w.k_norm, n_heads, head_dim, rows, rope, k_.data());
  const KvCache::Place& place = cache_.place(layer_idx);
  ops_.Split(n_rows, n_rows * width * 8, [&](int64_t begin, int64_t end) {
    float* v = v_.data() + begin * width;
    ops_.kernels.rms_norm(v, nullptr, (end - begin) * n_heads, head_dim, config_.rms_norm_eps, v);
    for (int64_t r = begin; r < end; ++r) {
      const int64_t position = rows[r].position;
      const KvSequence::Pages& pages = sequences[rows[r].seq_idx].kv->pages(place.kind);
      std::byte* page = pages.pages[position / kPageTokens - pages.first_page];
      for (int64_t head = 0; head < n_heads; ++head) {
        const auto first = static_cast<size_t>(r * width + head * head_dim);
        const auto n = static_cast<size_t>(head_dim);
        cache_.Store(place, head, position, page, std::span(k_).subspan(first, n),
                     std::span(v_).subspan(first, n));
      }
    }
  });
}

void Attention::LookBack(int layer_idx, std::span<const StepSequence> sequences,
                         std::span<const Row> rows) {
  const gemma::LayerConfig& layer = config_.layers[layer_idx];
  const KvCache::Place& place = cache_.place(layer_idx);
  const int64_t n_kv_heads = layer.n_kv_heads;
  const int64_t head_dim = layer.head_dim;
  const int64_t n_queries = config_.n_heads / n_kv_heads;
  // A sliding layer's query at position p sees p and the window - 1 positions before.
  const auto begin_of = [&](const Row& row) {
    return layer.is_sliding ? std::max<int64_t>(0, row.position + 1 - config_.sliding_window) : 0;
  };
  int64_t n_seen_all = 0;
  int64_t n_seen_most = 0;
  for (const Row& row : rows) {
    const int64_t n_seen = row.position + 1 - begin_of(row);
    n_seen_all += n_seen;
    n_seen_most = std::max(n_seen_most, n_seen);
  }
  // Heads are taken apart only where rows and KV heads are too few to keep all threads busy.
  int64_t n_parts = 1;
  const int64_t n_heads_all = static_cast<int64_t>(rows.size()) * n_kv_heads;
  while (n_heads_all * n_parts < ops_.pool.n_threads() && n_queries % (2 * n_parts) == 0) {
    n_parts *= 2;
  }
  const int64_t n_together = n_queries / n_parts;
  const int64_t n_items = n_heads_all * n_parts;
  const int64_t work = n_seen_all * config_.n_heads * head_dim * 2;
  ops_.Split(n_items, work, [&](int64_t item_begin, int64_t item_end) {
    std::vector<float> scores(static_cast<size_t>(n_together * (n_seen_most + 2 * kPageTokens)));
    for (int64_t item = item_begin; item < item_end; ++item) {
      const int64_t row_and_head = item / n_parts;
      const Row& row = rows[row_and_head / n_kv_heads];
      const int64_t head = row_and_head % n_kv_heads;
      const KvSequence::Pages& pages = sequences[row.seq_idx].kv->pages(place.kind);
      ops_.kernels.attention({
          .q = q_.data() + item * n_together * head_dim,
          .n_queries = n_together,
          .head_dim = head_dim,
          .kv_format = cache_.format(),
          .pages = pages.pages.data(),
          .first_page = pages.first_page,
          .k_offset = place.k_offset + head * place.head_stride,
          .v_offset = place.v_offset + head * place.head_stride,
          .begin = begin_of(row),
          .end = row.position + 1,
          .scores = scores.data(),
          .out = attended_.data() + item * n_together * head_dim,
      });
    }
  });
}

}  // namespace nibble::model
