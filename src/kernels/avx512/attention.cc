// Attention of one token over KV pages. In scores a vector is the 16 positions of a page, in values
// 16 dimensions of the head; up to eight query heads share what is loaded.
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/lanes.h"

namespace nibble::kernels::avx512 {
namespace {

template <KvFormat kFormat>
constexpr int64_t kElementBytes =
    kFormat == KvFormat::kF32 ? 4 : (kFormat == KvFormat::kBf16 ? 2 : 1);

template <KvFormat kFormat>
__m512 Load(const std::byte* values) {
  if constexpr (kFormat == KvFormat::kF32) return _mm512_loadu_ps(values);
  if constexpr (kFormat == KvFormat::kBf16) return WidenBf16(values);
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

// The call's pages as [first position, last position + 1) of each.
struct Page {
  const std::byte* bytes;
  int64_t begin;  // in the page
  int64_t end;
};

Page PageAt(const AttentionCall& call, int64_t page) {
  const int64_t first = page * kPageTokens;
  const int64_t end = call.end - first;
  return {call.pages[page - call.first_page], call.begin > first ? call.begin - first : 0,
          end < kPageTokens ? end : kPageTokens};
}

__mmask16 Seen(const Page& page) {
  return static_cast<__mmask16>(FirstLanes(page.end) & ~FirstLanes(page.begin));
}

// scores[query * stride + p] = q . k for the positions of a page.
template <KvFormat kFormat, int kQueries>
void ScorePage(const AttentionCall& call, const float* q, const std::byte* k, int64_t stride,
               float* scores) {
  constexpr int64_t kRowBytes = kPageTokens * kElementBytes<kFormat>;
  __m512 total[kQueries] = {};
  for (int64_t first = 0; first < call.head_dim; first += kBlockK) {
    const int64_t left = call.head_dim - first;
    const int64_t end = first + (left < kBlockK ? left : kBlockK);
    __m512 part[kQueries] = {};
    for (int64_t c = first; c < end; ++c) {
      const __m512 keys = Load<kFormat>(k + c * kRowBytes);
      for (int i = 0; i < kQueries; ++i) {
        part[i] = _mm512_fmadd_ps(_mm512_set1_ps(q[i * call.head_dim + c]), keys, part[i]);
      }
    }
    for (int i = 0; i < kQueries; ++i) total[i] = _mm512_add_ps(total[i], part[i]);
  }
  for (int i = 0; i < kQueries; ++i) {
    if constexpr (kFormat == KvFormat::kInt8) {
      total[i] = _mm512_mul_ps(total[i], _mm512_loadu_ps(k + call.head_dim * kRowBytes));
    }
    _mm512_storeu_ps(scores + i * stride, total[i]);
  }
}

// out[query, c] += sum over the page's positions of weights[query * stride + p] * v[p, c].
template <KvFormat kFormat, int kQueries>
void AddValues(const AttentionCall& call, const Page& page, const std::byte* v, int64_t stride,
               const float* weights, float* out) {
  const int64_t row_bytes = call.head_dim * kElementBytes<kFormat>;
  alignas(64) float scaled[kQueries][kPageTokens];
  for (int i = 0; i < kQueries; ++i) {
    __m512 weight = _mm512_loadu_ps(weights + i * stride);
    if constexpr (kFormat == KvFormat::kInt8) {
      weight = _mm512_mul_ps(weight, _mm512_loadu_ps(v + kPageTokens * row_bytes));
    }
    _mm512_store_ps(scaled[i], weight);
  }
  for (int64_t c = 0; c < call.head_dim; c += 16) {
    __m512 part[kQueries] = {};
    for (int64_t p = page.begin; p < page.end; ++p) {
      const __m512 values = Load<kFormat>(v + p * row_bytes + c * kElementBytes<kFormat>);
      for (int i = 0; i < kQueries; ++i) {
        part[i] = _mm512_fmadd_ps(_mm512_set1_ps(scaled[i][p]), values, part[i]);
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      float* sum = out + i * call.head_dim + c;
      _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), part[i]));
    }
  }
}

template <KvFormat kFormat, int kQueries>
void Attend(const AttentionCall& call, int64_t first_query) {
  const int64_t page_begin = call.begin / kPageTokens;
  const int64_t page_end = (call.end + kPageTokens - 1) / kPageTokens;
  const int64_t stride = (page_end - page_begin) * kPageTokens;
  const float* q = call.q + first_query * call.head_dim;
  float* out = call.out + first_query * call.head_dim;
  float* scores = call.scores + first_query * stride;
  __m512 max[kQueries];
  for (int i = 0; i < kQueries; ++i) max[i] = _mm512_set1_ps(-__builtin_inff());
  for (int64_t page_idx = page_begin; page_idx < page_end; ++page_idx) {
    const Page page = PageAt(call, page_idx);
    float* page_scores = scores + (page_idx - page_begin) * kPageTokens;
    ScorePage<kFormat, kQueries>(call, q, page.bytes + call.k_offset, stride, page_scores);
    for (int i = 0; i < kQueries; ++i) {
      const __m512 score = _mm512_loadu_ps(page_scores + i * stride);
      max[i] = _mm512_mask_max_ps(max[i], Seen(page), score, max[i]);
    }
  }
  __m512 lanes[kQueries] = {};
  for (int i = 0; i < kQueries; ++i) {
    max[i] = _mm512_set1_ps(_mm512_reduce_max_ps(max[i]));
    for (int64_t c = 0; c < call.head_dim; c += 16) {
      _mm512_storeu_ps(out + i * call.head_dim + c, _mm512_setzero_ps());
    }
  }
  for (int64_t page_idx = page_begin; page_idx < page_end; ++page_idx) {
    const Page page = PageAt(call, page_idx);
    float* weights = scores + (page_idx - page_begin) * kPageTokens;
    for (int i = 0; i < kQueries; ++i) {
      const __m512 score = _mm512_loadu_ps(weights + i * stride);
      const __m512 power = Exp(_mm512_sub_ps(score, max[i]));
      lanes[i] = _mm512_mask_add_ps(lanes[i], Seen(page), lanes[i], power);
      _mm512_storeu_ps(weights + i * stride, power);
    }
    AddValues<kFormat, kQueries>(call, page, page.bytes + call.v_offset, stride, weights, out);
  }
  for (int i = 0; i < kQueries; ++i) {
    const __m512 sum = _mm512_set1_ps(AddLanes(lanes[i]));
    for (int64_t c = 0; c < call.head_dim; c += 16) {
      float* value = out + i * call.head_dim + c;
      _mm512_storeu_ps(value, _mm512_div_ps(_mm512_loadu_ps(value), sum));
    }
  }
}

template <KvFormat kFormat>
void AttendAll(const AttentionCall& call) {
  int64_t query = 0;
  for (; query + 8 <= call.n_queries; query += 8) Attend<kFormat, 8>(call, query);
  for (; query + 4 <= call.n_queries; query += 4) Attend<kFormat, 4>(call, query);
  for (; query + 2 <= call.n_queries; query += 2) Attend<kFormat, 2>(call, query);
  for (; query < call.n_queries; ++query) Attend<kFormat, 1>(call, query);
}

}  // namespace

void Attention(const AttentionCall& call) {
  switch (call.kv_format) {
    case KvFormat::kF32:
      return AttendAll<KvFormat::kF32>(call);
    case KvFormat::kBf16:
      return AttendAll<KvFormat::kBf16>(call);
    case KvFormat::kInt8:
      return AttendAll<KvFormat::kInt8>(call);
  }
}

}  // namespace nibble::kernels::avx512
