// Attention of one token over KV pages, in absolute order of positions: scores of all pages first,
// then exponentials, then values.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/scalar/lanes.h"
#include "kernels/scalar/math.h"
#include "kernels/scalar/scalar.h"

namespace nibble::kernels::scalar {
namespace {

static_assert(kPageTokens == kLanes && kHeadDimMultiple == kLanes);

// K or V of one head in one page.
struct Side {
  const std::byte* bytes;
  KvFormat format;

  float Value(int64_t i) const {
    switch (format) {
      case KvFormat::kF32:
        return reinterpret_cast<const float*>(bytes)[i];
      case KvFormat::kBf16:
        return std::bit_cast<float>(
            static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(bytes)[i]) << 16);
      case KvFormat::kInt8:
        return reinterpret_cast<const int8_t*>(bytes)[i];
    }
    return 0;
  }

  // Of a position of the page.
  float Scale(int64_t p, int64_t head_dim) const {
    if (format != KvFormat::kInt8) return 1;
    return reinterpret_cast<const float*>(bytes + head_dim * kPageTokens)[p];
  }
};

float Score(const float* q, const Side& k, int64_t head_dim, int64_t p) {
  float score = 0;
  for (int64_t first = 0; first < head_dim; first += kBlockK) {
    float part = 0;
    for (int64_t c = first; c < std::min(first + kBlockK, head_dim); ++c) {
      part = std::fma(q[c], k.Value(c * kPageTokens + p), part);
    }
    score += part;
  }
  return score * k.Scale(p, head_dim);
}

// out[c] += sum over positions [begin, end) of the page of weights[p] * v[p, c].
void AddValues(const float* weights, const Side& v, int64_t begin, int64_t end, int64_t head_dim,
               float* out) {
  for (int64_t c = 0; c < head_dim; ++c) {
    float part = 0;
    for (int64_t p = begin; p < end; ++p) {
      part = std::fma(weights[p] * v.Scale(p, head_dim), v.Value(p * head_dim + c), part);
    }
    out[c] += part;
  }
}

void AttendOne(const AttentionCall& call, const float* q, float* scores, float* out) {
  const int64_t page_begin = call.begin / kPageTokens;
  const auto side = [&](int64_t page, int64_t offset) {
    return Side{call.pages[page - call.first_page] + offset, call.kv_format};
  };
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t position = call.begin; position < call.end; ++position) {
    const int64_t page = position / kPageTokens;
    float& score = scores[position - page_begin * kPageTokens];
    score = Score(q, side(page, call.k_offset), call.head_dim, position % kPageTokens);
    max = std::max(max, score);
  }
  float lanes[kLanes] = {};
  std::fill_n(out, call.head_dim, 0.0f);
  for (int64_t first = page_begin * kPageTokens; first < call.end; first += kPageTokens) {
    float* weights = scores + first - page_begin * kPageTokens;
    const int64_t begin = std::max<int64_t>(0, call.begin - first);
    const int64_t end = std::min(kPageTokens, call.end - first);
    for (int64_t p = begin; p < end; ++p) {
      weights[p] = Exp(weights[p] - max);
      lanes[p] += weights[p];
    }
    AddValues(weights, side(first / kPageTokens, call.v_offset), begin, end, call.head_dim, out);
  }
  const float sum = AddLanes(lanes);
  for (int64_t c = 0; c < call.head_dim; ++c) out[c] /= sum;
}

}  // namespace

void Attention(const AttentionCall& call) {
  const int64_t n_pages = (call.end + kPageTokens - 1) / kPageTokens - call.begin / kPageTokens;
  for (int64_t query = 0; query < call.n_queries; ++query) {
    AttendOne(call, call.q + query * call.head_dim, call.scores + query * n_pages * kPageTokens,
              call.out + query * call.head_dim);
  }
}

}  // namespace nibble::kernels::scalar
