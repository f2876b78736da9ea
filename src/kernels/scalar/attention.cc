// Attention of one token over KV pages, in absolute order of positions: scores of all pages first,
// then exponentials, then values.
#include <algorithm>
#include <limits>

#include "kernels/scalar/lanes.h"
#include "kernels/scalar/math.h"
#include "kernels/scalar/scalar.h"

namespace nibble::kernels::scalar {
namespace {

static_assert(kPageTokens == kLanes && kHeadDimMultiple == kLanes);

// scores[p] = q . k of position p of the page. k: [head_dim, kPageTokens].
void ScorePage(const float* q, const float* k, int64_t head_dim, float* scores) {
  std::fill_n(scores, kPageTokens, 0.0f);
  for (int64_t first = 0; first < head_dim; first += kBlockK) {
    Lanes part;
    const int64_t last = std::min(first + kBlockK, head_dim);
    for (int64_t c = first; c < last; ++c) part.AddProduct(q[c], k + c * kPageTokens);
    part.AddTo(scores);
  }
}

// out[c] += sum over positions [begin, end) of the page of weights[p] * v[p, c].
void AddValues(const float* weights, const float* v, int64_t begin, int64_t end, int64_t head_dim,
               float* out) {
  for (int64_t first = 0; first < head_dim; first += kLanes) {
    Lanes part;
    for (int64_t p = begin; p < end; ++p) part.AddProduct(weights[p], v + p * head_dim + first);
    part.AddTo(out + first);
  }
}

void AttendOne(const AttentionCall& call, const float* q, float* out) {
  const int64_t page_begin = call.begin / kPageTokens;
  const int64_t page_end = (call.end + kPageTokens - 1) / kPageTokens;
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t page = page_begin; page < page_end; ++page) {
    float* scores = call.scores + (page - page_begin) * kPageTokens;
    ScorePage(q, call.pages[page - call.first_page] + call.k_offset, call.head_dim, scores);
    for (int64_t p = 0; p < kPageTokens; ++p) {
      const int64_t position = page * kPageTokens + p;
      if (position >= call.begin && position < call.end) max = std::max(max, scores[p]);
    }
  }
  float lanes[kLanes] = {};
  std::fill_n(out, call.head_dim, 0.0f);
  for (int64_t page = page_begin; page < page_end; ++page) {
    float* weights = call.scores + (page - page_begin) * kPageTokens;
    const int64_t first = page * kPageTokens;
    const int64_t begin = std::max<int64_t>(0, call.begin - first);
    const int64_t end = std::min(kPageTokens, call.end - first);
    for (int64_t p = begin; p < end; ++p) {
      weights[p] = Exp(weights[p] - max);
      lanes[p] += weights[p];
    }
    AddValues(weights, call.pages[page - call.first_page] + call.v_offset, begin, end,
              call.head_dim, out);
  }
  const float sum = AddLanes(lanes);
  for (int64_t c = 0; c < call.head_dim; ++c) out[c] /= sum;
}

}  // namespace

void Attention(const AttentionCall& call) {
  for (int64_t query = 0; query < call.n_queries; ++query) {
    AttendOne(call, call.q + query * call.head_dim, call.out + query * call.head_dim);
  }
}

}  // namespace nibble::kernels::scalar
