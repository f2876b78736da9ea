// Sixteen sums side by side: the rows of a tile, the positions of a page, 16 dimensions of a head.
//
// Written with the vector type that GCC and Clang offer on every machine (four floats), because
// their own vectorisers turn the plain loops into transposes; the operations are those of a float
// each.
#pragma once

#include <cstdint>
#include <cstring>

namespace nibble::kernels::scalar {

inline constexpr int64_t kLanes = 16;

class Lanes {
 public:
  // this[lane] += factor * values[lane]
  void AddProduct(float factor, const float* values) {
    quads_[0] += factor * Load(values);
    quads_[1] += factor * Load(values + 4);
    quads_[2] += factor * Load(values + 8);
    quads_[3] += factor * Load(values + 12);
  }

  // this[lane] *= values[lane]
  void Multiply(const float* values) {
    for (int64_t i = 0; i < 4; ++i) quads_[i] *= Load(values + 4 * i);
  }

  // values[lane] += this[lane]
  void AddTo(float* values) const {
    for (int64_t i = 0; i < 4; ++i) {
      const Quad sum = Load(values + 4 * i) + quads_[i];
      std::memcpy(values + 4 * i, &sum, sizeof sum);
    }
  }

 private:
  using Quad [[gnu::vector_size(16)]] = float;

  static Quad Load(const float* values) {
    Quad quad;
    std::memcpy(&quad, values, sizeof quad);
    return quad;
  }

  Quad quads_[4] = {};
};

// Adds lanes l and l + 8, then 4, 2, 1.
inline float AddLanes(float* lanes) {
  for (int64_t step = kLanes / 2; step > 0; step /= 2) {
    for (int64_t lane = 0; lane < step; ++lane) lanes[lane] += lanes[lane + step];
  }
  return lanes[0];
}

}  // namespace nibble::kernels::scalar
