// Sums of many values by sixteen lanes, in the order that kernels.h states.
#pragma once

#include <cstdint>

namespace nibble::kernels::scalar {

inline constexpr int64_t kLanes = 16;

// Adds lanes l and l + 8, then 4, 2, 1.
inline float AddLanes(float* lanes) {
  for (int64_t step = kLanes / 2; step > 0; step /= 2) {
    for (int64_t lane = 0; lane < step; ++lane) lanes[lane] += lanes[lane + step];
  }
  return lanes[0];
}

}  // namespace nibble::kernels::scalar
