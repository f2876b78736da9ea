// The numbers of a synthetic checkpoint: any stretch of any tensor, computed from a seed alone.
//
// Idea: 32 consecutive values are a pattern out of a table times a factor, and which pattern and
// factor follows from hash(seed, tensor's name, place). So a stretch costs one hash per 32 values,
// and threads, chunks and shards cannot change a byte.
//
// On the grid a pattern holds 4-bit codes, the factor is a scale d that fp16 or bf16 can store, and
// a value is bf16(d * code), as a QAT export has it. Patterns are gaussian groups quantised:
//   7 of 8 as Q4_0 does it: the largest value has code -8;
//   1 of 8 with a scale that grew too large in training: the largest code is 1 .. 7 (evenly often);
//   1 in 32,768 holds only zeros.
// Scales are log-normal (the middle 95 % within a factor of 1.6), half of them negative.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace nibble::make_checkpoint {

inline constexpr int kGroup = 32;

// How a tensor's values are distributed.
struct Fill {
  bool on_grid = false;
  float mean = 0;  // 0 if on the grid
  float deviation = 0;
};

class Values {
 public:
  // scale_dtype: kF16 or kBF16, what lies behind the values on the grid.
  Values(uint64_t seed, DType scale_dtype);

  // A tensor's values as bf16 patterns. Thread-safe.
  class Tensor {
   public:
    // Values first_group * 32 and on; `out`: any length, if on the grid a multiple of 32.
    void Write(int64_t first_group, std::span<uint16_t> out) const;

   private:
    friend class Values;
    static constexpr size_t kFactors = 4096;

    const Values* values_;
    Fill fill_;
    uint64_t key_;
    std::array<float, kFactors> factors_;
  };

  // `name` tells one tensor from another. The result refers to this object.
  Tensor ForTensor(std::string_view name, Fill fill) const;

 private:
  uint64_t seed_;
  DType scale_dtype_;
  std::vector<int8_t> codes_;     // [kCodePatterns, kGroup]
  std::vector<float> gaussians_;  // [kGaussianPatterns, kGroup], deviation 1
  float code_rms_ = 0;
};

}  // namespace nibble::make_checkpoint
