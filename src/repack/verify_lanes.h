// What the files for single instruction sets share behind verify_batch.h: the loop over groups,
// around one comparison written in intrinsics. `Isa` is a type of internal linkage, and there are
// no headers with inline functions here, so that nothing compiled for a newer CPU is shared by the
// linker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "repack/verify_batch.h"

namespace nibble::repack {

template <typename Isa>
class ProofLanes {
 public:
  static int64_t Prove(const ProofBatch& batch, uint32_t* left_over, ProofSums* sums) {
    int64_t n_left_over = 0;
    Running running;
    for (int64_t i = 0; i < batch.n_groups; ++i) {
      const std::byte* source = batch.source + i * 64;
      const std::byte* packed = batch.packed + i * 16;
      uint16_t bits;
      __builtin_memcpy(&bits, batch.scales + i * 2, sizeof bits);
      const bool is_proven = IsUsual(bits, batch.is_fp16) &&
                             (ProveIdentical(source, packed, Widen(bits, batch.is_fp16), sums) ||
                              ProveNear(source, packed, bits, batch.is_fp16, &running, sums));
      running.n_negative_scales += is_proven ? bits >> 15 : 0;
      if (!is_proven) left_over[n_left_over++] = static_cast<uint32_t>(i);
    }
    const auto n_proven = static_cast<uint64_t>(batch.n_groups - n_left_over);
    const int64_t n_differing = -Sum(running.n_differing);
    sums->n_groups += n_proven;
    sums->n_negative_scales += running.n_negative_scales;
    sums->n_bit_identical += n_proven * 32 - static_cast<uint64_t>(n_differing);
    sums->n_zero_sign_lost += static_cast<uint64_t>(-Sum(running.n_zero_sign_lost));
    const float max_error = Fold(running.max_error, [](F32 a, F32 b) { return a > b ? a : b; })[0];
    if (max_error > sums->max_error) sums->max_error = max_error;
    if (max_error > 0) sums->worst_ulp = sums->worst_ulp > 1 ? sums->worst_ulp : 1;
    return n_left_over;
  }

 private:
  static constexpr int kLanes = Isa::kLanes;
  using F32 = typename Isa::F32;  // kLanes of them, as the following
  using I32 = typename Isa::I32;
  using U32 = typename Isa::U32;
  using U16 = typename Isa::U16;
  using Lanes = std::make_integer_sequence<int, kLanes>;

  // Over groups that are not identical. Counts run downwards: sums of masks, which are 0 or -1.
  struct Running {
    uint64_t n_negative_scales = 0;
    I32 n_differing = {};
    I32 n_zero_sign_lost = {};
    F32 max_error = {};
  };

  // The intersection of the intervals of scales, times 840, as the float bits of its ends.
  struct Range {
    I32 low = {};
    I32 high = I32{} + 0x7f800000;
  };

  template <typename To, typename From>
  static To Bits(From from) {
    return reinterpret_cast<To>(from);
  }

  template <int kStep, typename V, int... kLane>
  static V Swap(V v, std::integer_sequence<int, kLane...>) {
    return __builtin_shufflevector(v, v, (kLane ^ kStep)...);
  }
  // All lanes with all; every lane of the result holds it.
  template <typename V, typename Join>
  static V Fold(V v, Join join) {
    if constexpr (kLanes == 16) v = join(v, Swap<8>(v, Lanes()));
    v = join(v, Swap<4>(v, Lanes()));
    v = join(v, Swap<2>(v, Lanes()));
    return join(v, Swap<1>(v, Lanes()));
  }
  template <typename V>
  static auto Sum(V v) {
    return Fold(v, [](V a, V b) { return a + b; })[0];
  }

  // Away from both ends of its dtype's range: it and its neighbours are finite and not zero, and
  // no square of a value or an error leaves float32's normal numbers.
  static bool IsUsual(uint16_t bits, bool is_fp16) {
    const int size = bits & 0x7fff;
    return is_fp16 ? size >= 2 && size < 0x7bff : size >= (87 << 7) && size < (167 << 7);
  }

  static float FromBits(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }
  static int32_t ToBits(float value) {
    int32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  // With fp16's exponent in float32's place a value is 2^112 times too small.
  static float Widen(uint16_t bits, bool is_fp16) {
    if (!is_fp16) return FromBits(uint32_t{bits} << 16);
    const uint32_t size = static_cast<uint32_t>(bits & 0x7fff) << 13;
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    return FromBits(size | sign) * 0x1p112f;
  }

  static U32 LoadSource(const std::byte* source) {
    U16 values;
    __builtin_memcpy(&values, source, sizeof values);
    return __builtin_convertvector(values, U32);
  }
  // Lane i: byte i / 2, its low nibble first.
  template <int... kLane>
  static I32 LoadCodes(const std::byte* packed, std::integer_sequence<int, kLane...>) {
    uint32_t words[kLanes / 8];
    __builtin_memcpy(words, packed, sizeof words);
    const U32 in_place = {words[kLane / 8]...};
    const U32 shifts = {(kLane % 8 * 4)...};
    return Bits<I32>((in_place >> shifts) & 15) - 8;
  }
  static U32 RoundToBf16(F32 value) {
    const U32 bits = Bits<U32>(value);
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // ties to even
  }

  static double Energy(const std::byte* source) {
    F32 squares = {};
    for (ptrdiff_t first = 0; first < 32; first += kLanes) {
      const F32 values = Bits<F32>(LoadSource(source + first * 2) << 16);
      squares += values * values;
    }
    return static_cast<double>(Sum(squares));
  }

  // Adds the group if every value is read back bit for bit.
  static bool ProveIdentical(const std::byte* source, const std::byte* packed, float scale,
                             ProofSums* sums) {
    if (!Isa::IsIdentical(source, packed, scale)) return false;
    sums->sum_squares += Energy(source);
    return true;
  }

  // Adds the group if every value is read back within one bf16 step and the scale is the nearest.
  static bool ProveNear(const std::byte* source, const std::byte* packed, uint16_t scale_bits,
                        bool is_fp16, Running* running, ProofSums* sums) {
    const float scale = Widen(scale_bits, is_fp16);
    Running group = *running;
    Range range;
    I32 is_odd_one = {};
    I32 is_off = {};  // by a step; other differences are between the two zeros
    F32 squares = {};
    F32 squared_errors = {};
    for (ptrdiff_t first = 0; first < 32; first += kLanes) {
      const U32 stored = LoadSource(source + first * 2);
      const F32 codes = __builtin_convertvector(LoadCodes(packed + first / 2, Lanes()), F32);
      const U32 read = RoundToBf16(codes * scale);
      const I32 stored_size = Bits<I32>(stored & 0x7fff);
      const I32 read_size = Bits<I32>(read & 0x7fff);
      const I32 is_zero = (stored_size | read_size) == 0;
      const I32 differs = stored != read;
      const I32 steps = stored_size - read_size;
      const I32 has_other_sign = (stored ^ read) > 0x7fff;
      is_odd_one |= ~is_zero & (has_other_sign | (steps > 1) | (steps < -1) | (stored_size == 0) |
                                (read_size == 0));
      is_off |= steps != 0;
      Narrow(stored_size, codes, is_zero, &range);
      const F32 values = Bits<F32>(stored << 16);
      const F32 error = Bits<F32>(read << 16) - values;
      const F32 error_size = error < 0 ? -error : error;
      squares += values * values;
      squared_errors += error * error;
      group.n_differing += differs;
      group.n_zero_sign_lost += differs & is_zero;
      group.max_error = error_size > group.max_error ? error_size : group.max_error;
    }
    if (Sum(is_odd_one) != 0) return false;
    if (Sum(is_off) != 0 && !IsNearest(scale_bits, is_fp16, range)) return false;
    *running = group;
    sums->sum_squares += static_cast<double>(Sum(squares));
    sums->sum_squared_error += static_cast<double>(Sum(squared_errors));
    return true;
  }

  static void Narrow(I32 stored_size, F32 codes, I32 is_zero, Range* range) {
    const F32 per_code = 840.0f / (codes < 0 ? -codes : codes);  // exact; not used where code is 0
    const I32 is_odd = stored_size & 1;                          // a tie goes to the even value
    // Half way to the neighbours, also in bit patterns.
    const I32 middle = stored_size << 16;
    const I32 low = Bits<I32>(Bits<F32>(middle - 0x8000) * per_code) + is_odd;
    const I32 high = Bits<I32>(Bits<F32>(middle + 0x8000) * per_code) - is_odd;
    const I32 usable_low = low & ~is_zero;
    const I32 usable_high = is_zero != 0 ? range->high : high;
    range->low = usable_low > range->low ? usable_low : range->low;
    range->high = usable_high < range->high ? usable_high : range->high;
  }

  // Rule 2 of verify_group.h: some scale gives every value back, neither of the stored one's
  // neighbours does, and the numbers that round to the stored one meet the range of those that do.
  static bool IsNearest(uint16_t scale_bits, bool is_fp16, const Range& range) {
    const int32_t low = Fold(range.low, [](I32 a, I32 b) { return a > b ? a : b; })[0];
    const int32_t high = Fold(range.high, [](I32 a, I32 b) { return a < b ? a : b; })[0];
    if (low > high) return false;
    const auto size_bits = static_cast<uint16_t>(scale_bits & 0x7fff);
    const float size = Widen(size_bits, is_fp16);
    const float below = Widen(static_cast<uint16_t>(size_bits - 1), is_fp16);
    const float above = Widen(static_cast<uint16_t>(size_bits + 1), is_fp16);
    const auto explains = [low, high](float scale) {
      const int32_t bits = ToBits(scale * 840);
      return bits >= low && bits <= high;
    };
    return !explains(below) && !explains(above) && ToBits((size + below) * 420) <= high &&
           ToBits((size + above) * 420) >= low;
  }
};

}  // namespace nibble::repack
