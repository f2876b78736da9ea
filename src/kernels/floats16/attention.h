// Attention of one token over KV pages, over sixteen floats of any instruction set (lanes.h): in
// scores they are the 16 positions of a page, in values 16 dimensions of the head; up to
// Floats::kQueriesTogether query heads share what is loaded.
#pragma once

#include "kernels/floats16/lanes.h"
#include "kernels/kernels.h"

namespace nibble::kernels::floats16 {
namespace {  // NOLINT(google-build-namespaces): local to each file that includes this

static_assert(kPageTokens == kLanes && kHeadDimMultiple == kLanes);

constexpr int64_t ElementBytes(KvFormat format) {
  if (format == KvFormat::kF32) return 4;
  return format == KvFormat::kBf16 ? 2 : 1;
}

template <typename Floats, KvFormat kFormat>
[[maybe_unused]] Floats LoadElements(const std::byte* values) {
  if constexpr (kFormat == KvFormat::kF32) return Floats::Load(values);
  if constexpr (kFormat == KvFormat::kBf16) return Floats::LoadBf16(values);
  if constexpr (kFormat == KvFormat::kInt8) return Floats::LoadInt8(values);
}

// A page of the call and which of its positions are seen: [begin, end).
struct Page {
  const std::byte* bytes;
  int64_t begin;
  int64_t end;
};

[[maybe_unused]] Page PageAt(const AttentionCall& call, int64_t page) {
  const int64_t first = page * kPageTokens;
  const int64_t end = call.end - first;
  return {call.pages[page - call.first_page], call.begin > first ? call.begin - first : 0,
          end < kPageTokens ? end : kPageTokens};
}

// scores[query * stride + p] = q . k for the positions of a page.
template <typename Floats, KvFormat kFormat, int kQueries>
[[maybe_unused]] void ScorePage(const AttentionCall& call, const float* q, const std::byte* k,
                                int64_t stride, float* scores) {
  constexpr int64_t kRowBytes = kPageTokens * ElementBytes(kFormat);
  const Floats zero = Floats::All(0.0f);
  Floats total[kQueries];
  for (int i = 0; i < kQueries; ++i) total[i] = zero;
  for (int64_t first = 0; first < call.head_dim; first += kBlockK) {
    const int64_t left = call.head_dim - first;
    const int64_t end = first + (left < kBlockK ? left : kBlockK);
    Floats part[kQueries];
    for (int i = 0; i < kQueries; ++i) part[i] = zero;
    for (int64_t c = first; c < end; ++c) {
      const Floats keys = LoadElements<Floats, kFormat>(k + c * kRowBytes);
      for (int i = 0; i < kQueries; ++i) {
        part[i] = Fma(Floats::All(q[i * call.head_dim + c]), keys, part[i]);
      }
    }
    for (int i = 0; i < kQueries; ++i) total[i] = total[i] + part[i];
  }
  for (int i = 0; i < kQueries; ++i) {
    if constexpr (kFormat == KvFormat::kInt8) {
      total[i] = total[i] * Floats::Load(k + call.head_dim * kRowBytes);
    }
    total[i].Store(scores + i * stride);
  }
}

// out[query, c] += sum over the page's positions of weights[query * stride + p] * v[p, c].
template <typename Floats, KvFormat kFormat, int kQueries>
[[maybe_unused]] void AddValues(const AttentionCall& call, const Page& page, int64_t stride,
                                const float* weights, float* out) {
  const std::byte* v = page.bytes + call.v_offset;
  const int64_t row_bytes = call.head_dim * ElementBytes(kFormat);
  float scaled[kQueries][kPageTokens];
  for (int i = 0; i < kQueries; ++i) {
    Floats weight = Floats::Load(weights + i * stride);
    if constexpr (kFormat == KvFormat::kInt8) {
      weight = weight * Floats::Load(v + kPageTokens * row_bytes);
    }
    weight.Store(scaled[i]);
  }
  for (int64_t c = 0; c < call.head_dim; c += kLanes) {
    Floats part[kQueries];
    for (int i = 0; i < kQueries; ++i) part[i] = Floats::All(0.0f);
    for (int64_t p = page.begin; p < page.end; ++p) {
      const auto values =
          LoadElements<Floats, kFormat>(v + p * row_bytes + c * ElementBytes(kFormat));
      for (int i = 0; i < kQueries; ++i) {
        part[i] = Fma(Floats::All(scaled[i][p]), values, part[i]);
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      float* sum = out + i * call.head_dim + c;
      (Floats::Load(sum) + part[i]).Store(sum);
    }
  }
}

template <typename Floats, KvFormat kFormat, int kQueries>
[[maybe_unused]] void Attend(const AttentionCall& call, int64_t first_query) {
  const int64_t page_begin = call.begin / kPageTokens;
  const int64_t page_end = (call.end + kPageTokens - 1) / kPageTokens;
  const int64_t stride = (page_end - page_begin) * kPageTokens;
  const float* q = call.q + first_query * call.head_dim;
  float* out = call.out + first_query * call.head_dim;
  float* scores = call.scores + first_query * stride;
  Floats max[kQueries];
  Floats lanes[kQueries];
  for (int i = 0; i < kQueries; ++i) max[i] = Floats::All(-__builtin_inff());
  for (int64_t page_idx = page_begin; page_idx < page_end; ++page_idx) {
    const Page page = PageAt(call, page_idx);
    const auto seen = Between<Floats>(page.begin, page.end);
    float* page_scores = scores + (page_idx - page_begin) * kPageTokens;
    ScorePage<Floats, kFormat, kQueries>(call, q, page.bytes + call.k_offset, stride, page_scores);
    for (int i = 0; i < kQueries; ++i) {
      max[i] = Max(Select(seen, Floats::Load(page_scores + i * stride), max[i]), max[i]);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    max[i] = Floats::All(MaxLanes(max[i]));
    lanes[i] = Floats::All(0.0f);
    for (int64_t c = 0; c < call.head_dim; c += kLanes) lanes[i].Store(out + i * call.head_dim + c);
  }
  for (int64_t page_idx = page_begin; page_idx < page_end; ++page_idx) {
    const Page page = PageAt(call, page_idx);
    const auto seen = Between<Floats>(page.begin, page.end);
    float* weights = scores + (page_idx - page_begin) * kPageTokens;
    for (int i = 0; i < kQueries; ++i) {
      const Floats power = Exp(Floats::Load(weights + i * stride) - max[i]);
      lanes[i] = lanes[i] + And(seen, power);
      power.Store(weights + i * stride);
    }
    AddValues<Floats, kFormat, kQueries>(call, page, stride, weights, out);
  }
  for (int i = 0; i < kQueries; ++i) {
    const Floats sum = Floats::All(AddLanes(lanes[i]));
    for (int64_t c = 0; c < call.head_dim; c += kLanes) {
      float* value = out + i * call.head_dim + c;
      (Floats::Load(value) / sum).Store(value);
    }
  }
}

template <typename Floats, KvFormat kFormat>
[[maybe_unused]] void AttendAll(const AttentionCall& call) {
  int64_t query = 0;
  if constexpr (Floats::kQueriesTogether >= 8) {
    for (; query + 8 <= call.n_queries; query += 8) Attend<Floats, kFormat, 8>(call, query);
  }
  for (; query + 4 <= call.n_queries; query += 4) Attend<Floats, kFormat, 4>(call, query);
  for (; query + 2 <= call.n_queries; query += 2) Attend<Floats, kFormat, 2>(call, query);
  for (; query < call.n_queries; ++query) Attend<Floats, kFormat, 1>(call, query);
}

template <typename Floats>
[[maybe_unused]] void Attention(const AttentionCall& call) {
  switch (call.kv_format) {
    case KvFormat::kF32:
      return AttendAll<Floats, KvFormat::kF32>(call);
    case KvFormat::kBf16:
      return AttendAll<Floats, KvFormat::kBf16>(call);
    case KvFormat::kInt8:
      return AttendAll<Floats, KvFormat::kInt8>(call);
  }
}

}  // namespace
}  // namespace nibble::kernels::floats16
