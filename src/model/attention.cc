#include "model/attention.h"

#include <algorithm>

namespace nibble::model {

using kernels::kPageTokens;

void Attention::Run(int layer_idx, const LayerWeights& w, std::span<const StepSequence> sequences,
                    std::span<const Row> rows, const RopeTable& rope, const float* x, float* out) {
  const gemma::LayerConfig& layer = config_.layers[layer_idx];
  const auto n_rows = static_cast<int64_t>(rows.size());
  if (config_.OwnsKv(layer_idx)) StoreKv(layer_idx, w, sequences, rows, rope, x);
  const int64_t row_width = int64_t{config_.n_heads} * layer.head_dim;
  q_.resize(static_cast<size_t>(n_rows * row_width));
  attended_.resize(q_.size());
  ops_.Linear(w.q_proj, x, n_rows, q_.data());
  ops_.kernels.rms_norm(q_.data(), w.q_norm.data(), n_rows * config_.n_heads, layer.head_dim,
                        config_.rms_norm_eps, q_.data());
  for (int64_t r = 0; r < n_rows; ++r) {
    const int token = rows[r].token_idx;
    ops_.kernels.rotate(q_.data() + r * row_width, config_.n_heads, layer.head_dim, rope.cos(token),
                        rope.sin(token), rope.n_pairs());
  }
  LookBack(layer_idx, sequences, rows);
  ops_.Linear(w.o_proj, attended_.data(), n_rows, out);
}

void Attention::StoreKv(int layer_idx, const LayerWeights& w,
                        std::span<const StepSequence> sequences, std::span<const Row> rows,
                        const RopeTable& rope, const float* x) {
  const gemma::LayerConfig& layer = config_.layers[layer_idx];
  const int64_t n_rows = static_cast<int64_t>(rows.size());
  const int64_t n_heads = layer.n_kv_heads;
  const int64_t head_dim = layer.head_dim;
  k_.resize(static_cast<size_t>(n_rows * n_heads * head_dim));
  v_.resize(k_.size());
  ops_.Linear(w.k_proj, x, n_rows, k_.data());
  if (layer.k_eq_v) {
    v_ = k_;  // before k_norm and RoPE
  } else {
    ops_.Linear(w.v_proj, x, n_rows, v_.data());
  }
  const float eps = config_.rms_norm_eps;
  ops_.kernels.rms_norm(k_.data(), w.k_norm.data(), n_rows * n_heads, head_dim, eps, k_.data());
  ops_.kernels.rms_norm(v_.data(), nullptr, n_rows * n_heads, head_dim, eps, v_.data());
  const KvCache::Place& place = cache_.place(layer_idx);
  for (int64_t r = 0; r < n_rows; ++r) {
    const Row& row = rows[r];
    float* k = k_.data() + r * n_heads * head_dim;
    const float* v = v_.data() + r * n_heads * head_dim;
    ops_.kernels.rotate(k, n_heads, head_dim, rope.cos(row.token_idx), rope.sin(row.token_idx),
                        rope.n_pairs());
    const KvSequence::Pages& pages = sequences[row.seq_idx].kv->pages(place.kind);
    float* page = pages.pages[row.position / kPageTokens - pages.first_page];
    const int64_t in_page = row.position % kPageTokens;
    for (int64_t head = 0; head < n_heads; ++head, k += head_dim, v += head_dim) {
      float* k_place = page + place.k_offset + head * place.head_stride;
      float* v_place = page + place.v_offset + head * place.head_stride;
      for (int64_t c = 0; c < head_dim; ++c) k_place[c * kPageTokens + in_page] = k[c];
      std::copy_n(v, head_dim, v_place + in_page * head_dim);
    }
  }
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
  const int64_t n_items = static_cast<int64_t>(rows.size()) * n_kv_heads;
  const int64_t work = n_seen_all * config_.n_heads * head_dim * 2;
  ops_.Split(n_items, work, [&](int64_t item_begin, int64_t item_end) {
    std::vector<float> scores(static_cast<size_t>(n_seen_most + 2 * kPageTokens));
    for (int64_t item = item_begin; item < item_end; ++item) {
      const Row& row = rows[item / n_kv_heads];
      const int64_t head = item % n_kv_heads;
      const KvSequence::Pages& pages = sequences[row.seq_idx].kv->pages(place.kind);
      ops_.kernels.attention({
          .q = q_.data() + item * n_queries * head_dim,
          .n_queries = n_queries,
          .head_dim = head_dim,
          .pages = pages.pages.data(),
          .first_page = pages.first_page,
          .k_offset = place.k_offset + head * place.head_stride,
          .v_offset = place.v_offset + head * place.head_stride,
          .begin = begin_of(row),
          .end = row.position + 1,
          .scores = scores.data(),
          .out = attended_.data() + item * n_queries * head_dim,
      });
    }
  });
}

}  // namespace nibble::model
