// Grid recovery of many groups at once: each lane of a vector register is one group.
//
// Transposed so, the 32 values of the groups meet in plain vector operations and nothing is ever
// summed across lanes. The method is RecoverGroup's (grid.h) in a form without divisions: interval
// ends are kept as 840 times themselves (840 is a multiple of every code 1 .. 8), as a 9-bit end
// times 840 / code is exact in float32. An end that does not belong to its interval is first moved
// inwards by 2^-19 of its binade, which is told apart afterwards by the product's low bits. Divided
// by 840, an end is the very float that RecoverGroup has, as both round the same rational.
//
// Guarantee: groups not left over have RecoverGroup's codes, scale and counts, bit for bit. Left
// over are all-zero groups, NaN, infinity, magnitudes whose products could leave float32's normal
// numbers, scales near the ends of fp16's range, and what is off the grid.
//
// A file for one instruction set instantiates this with its own `Isa`, a type of internal linkage:
// the number of lanes and what GCC's vector extension lacks. No headers with inline functions here:
// one of them, compiled for a newer CPU, might be the copy that the linker keeps for everyone.
// Tested by grid_batch_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "repack/grid_batch.h"

namespace nibble::repack {

template <typename Isa>
class GridLanes {
 public:
  static constexpr int kLanes = Isa::kLanes;

  static int64_t Recover(const GridBatch& batch, uint32_t* left_over, GridSums* sums) {
    return batch.is_fp16 ? RecoverAs<true>(batch, left_over, sums)
                         : RecoverAs<false>(batch, left_over, sums);
  }

 private:
  using F32 = typename Isa::F32;  // kLanes of them
  using I32 = typename Isa::I32;
  using U32 = typename Isa::U32;
  using I16 = typename Isa::I16;  // 2 * kLanes
  using U16 = typename Isa::U16;

  static constexpr int kPairs = 16;
  static constexpr int kMaxPeak = 8;
  static constexpr uint32_t kSignBit = 0x80000000u;
  static constexpr float kMultiple = 840;
  static constexpr float kToInteger = 0x1.8p23f;  // plus a small float: its integer in the low bits
  static constexpr uint32_t kTinyBits = 5 << 7;   // 2^-122, as in grid.cc
  static constexpr uint32_t kHugeBits = (127 + 100) << 7;  // bf16 bits of 2^100
  static constexpr int32_t kProductBits = ~0xff;  // 9 bits times 105 and a power of two: 16 bits

  // kLanes groups, transposed, and what all their values have in common.
  struct Groups {
    U32 pairs[kPairs];  // values 2i (low half) and 2i + 1 of each group
    U32 peak;           // the largest magnitude, as float bits
    U32 opposite;       // the largest magnitude among values of the other sign, 0 if there are none
    I32 is_peak_positive;
    I32 is_usual;
    U32 n_positive_zeros;
    U32 n_negative_zeros;
  };

  // The scales' interval, as the float bits of its ends.
  struct Interval {
    I32 lowest;
    I32 highest;
  };

  // What was found so far; masks are 0 or -1.
  struct Found {
    I32 is_exact = {};
    I32 is_nearest = {};  // explained, but by no storable scale yet
    U32 peak_code = {};
    U32 scale_bits = {};  // positive
  };

  struct Sums {
    I32 n_groups = {};  // this and the following count downwards: sums of masks
    I32 n_exact = {};
    I32 n_negative_scales = {};
    I32 n_inexact_values = {};
    I32 n_by_peak_code[kMaxPeak + 1] = {};
    U32 n_zero_sign_lost = {};
    U32 worst_ulp = {};
  };

  // The same bits as another type.
  template <typename To, typename From>
  static To Bits(From from) {
    return reinterpret_cast<To>(from);
  }
  template <typename V>
  static V Max(V a, V b) {
    return a > b ? a : b;
  }
  template <typename V>
  static V Min(V a, V b) {
    return a < b ? a : b;
  }
  static bool Any(I32 mask) { return Isa::SignBits(mask) != 0; }

  static U32 Low(U32 pair) { return pair << 16; }
  static U32 High(U32 pair) { return pair & 0xffff0000u; }

  using Lanes = std::make_integer_sequence<int, kLanes>;

  // Swaps the elements off the diagonal of every 2x2 square of blocks of kStep x kStep.
  template <int kStep, int... kLane>
  static void SwapBlocks(U32* rows, std::integer_sequence<int, kLane...>) {
    for (int i = 0; i < kLanes; ++i) {
      if ((i & kStep) != 0) continue;
      const U32 a = rows[i];
      const U32 b = rows[i + kStep];
      rows[i] =
          __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane - kStep : kLane)...);
      rows[i + kStep] =
          __builtin_shufflevector(a, b, ((kLane & kStep) != 0 ? kLanes + kLane : kLane + kStep)...);
    }
  }
  static void Transpose(U32* rows) {
    SwapBlocks<1>(rows, Lanes());
    SwapBlocks<2>(rows, Lanes());
    SwapBlocks<4>(rows, Lanes());
    if constexpr (kLanes == 16) SwapBlocks<8>(rows, Lanes());
  }

  // a[0] b[0] a[1] b[1] ..
  template <int... kLane>
  static void Zip(U32* a, U32* b, std::integer_sequence<int, kLane...>) {
    const U32 low = __builtin_shufflevector(*a, *b, (kLane / 2 + kLane % 2 * kLanes)...);
    *b = __builtin_shufflevector(*a, *b, ((kLanes + kLane) / 2 + kLane % 2 * kLanes)...);
    *a = low;
  }

  // pairs[i] lane g <- dword i of group g.
  static void Load(const std::byte* source, U32* pairs) {
    for (ptrdiff_t first = 0; first < kPairs; first += kLanes) {
      for (ptrdiff_t group = 0; group < kLanes; ++group) {
        __builtin_memcpy(&pairs[first + group], source + (group * kPairs + first) * 4, sizeof(U32));
      }
      Transpose(&pairs[first]);
    }
  }

  static Groups Prepare(const std::byte* source) {
    Groups groups;
    Load(source, groups.pairs);
    I16 largest_signed = Bits<I16>(groups.pairs[0]);
    U16 largest = Bits<U16>(groups.pairs[0]);
    U16 smallest =
        (Bits<U16>(groups.pairs[0]) & 0x7fff) - 1;  // of those that are not zero, minus 1
    I16 positive_zeros = {};
    I16 negative_zeros = {};
    for (const U32& pair : groups.pairs) {
      const U16 values = Bits<U16>(pair);
      largest_signed = Max(largest_signed, Bits<I16>(pair));
      largest = Max(largest, values);
      smallest = Min(smallest, Bits<U16>((values & 0x7fff) - 1));
      positive_zeros += values == 0;
      negative_zeros += values == 0x8000;
    }
    const I32 signed_pair = Bits<I32>(largest_signed);
    const U32 positive = Bits<U32>(Max(Max((signed_pair << 16) >> 16, signed_pair >> 16), I32{}));
    const U32 with_sign = Max(Bits<U32>(largest) & 0xffff, Bits<U32>(largest) >> 16);
    const U32 negative = with_sign >= 0x8000 ? with_sign & 0x7fff : U32{};
    const U32 least = Min(Bits<U32>(smallest) & 0xffff, Bits<U32>(smallest) >> 16);
    const U32 peak = Max(positive, negative);
    groups.peak = peak << 16;
    groups.opposite = Min(positive, negative) << 16;
    groups.is_peak_positive = positive > negative;
    groups.is_usual = (peak != 0) & (peak < kHugeBits) & (least >= kTinyBits - 1);
    groups.n_positive_zeros = AddHalves(-positive_zeros);
    groups.n_negative_zeros = AddHalves(-negative_zeros);
    return groups;
  }

  static U32 AddHalves(I16 counts) {
    return (Bits<U32>(counts) & 0xffff) + (Bits<U32>(counts) >> 16);
  }

  // Intersects with the scales (times 840) that the value admits.
  static void Narrow(U32 size, const Groups& groups, F32 codes_per_unit, Interval* scales) {
    size = size == 0 ? groups.peak : size;  // a zero says nothing, and the peak nothing new
    const U32 rounded = Bits<U32>(Bits<F32>(size) * codes_per_unit + kToInteger);
    const F32 multiple_per_code = Isa::LookUp840ths(rounded);
    const U32 half_step = 0x8000 - ((size >> 12) & 16);  // odd: the ends do not belong
    const F32 lower = Bits<F32>(size - half_step) * multiple_per_code;
    const F32 upper = Bits<F32>(size + half_step) * multiple_per_code;
    scales->lowest = Max(scales->lowest, Bits<I32>(lower));
    scales->highest = Min(scales->highest, Bits<I32>(upper));
  }

  // Supposes that the largest values have `peak_code`. Returns for which of the `open` groups some
  // scale explains all values.
  static I32 Explain(const Groups& groups, int peak_code, I32 open, Interval* scales) {
    const F32 codes_per_unit = static_cast<float>(peak_code) / Bits<F32>(groups.peak);
    if (peak_code == kMaxPeak) {  // there is no code +8
      open &= Bits<F32>(groups.opposite) * codes_per_unit < 7.5f;
    }
    scales->lowest = I32{};
    scales->highest = I32{} + 0x7f800000;
    constexpr int kStride = 4;  // pairs between two looks at whether it is hopeless
    for (int begin = 0; begin < kPairs; begin += kStride) {
      for (int i = begin; i < begin + kStride; ++i) {
        Narrow(Low(groups.pairs[i]) & ~kSignBit, groups, codes_per_unit, scales);
        Narrow(High(groups.pairs[i]) & ~kSignBit, groups, codes_per_unit, scales);
      }
      open &= scales->lowest <= scales->highest;
      if (!Any(open)) break;
    }
    return open;
  }

  // From 840 times the ends to the ends, open ones moved inwards by one float.
  static Interval Divide(const Interval& scales) {
    const I32 low = scales.lowest & kProductBits;
    const I32 high = (scales.highest + ~kProductBits) & kProductBits;
    return {.lowest = Bits<I32>(Bits<F32>(low) / kMultiple) - (low != scales.lowest),
            .highest = Bits<I32>(Bits<F32>(high) / kMultiple) + (high != scales.highest)};
  }

  static U32 RoundToBf16(U32 bits) { return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; }

  // Positive floats within fp16's finite range; below 2^-14, fp16 counts units of 2^-24.
  static U32 RoundToFp16(F32 value) {
    const U32 bits = Bits<U32>(value);
    const U32 normal = (bits + 0xfff - (112u << 23) + ((bits >> 13) & 1)) >> 13;
    const U32 subnormal = Bits<U32>(value + 0.5f) - 0x3f000000u;
    return value < 0x1p-14f ? subnormal : normal;
  }
  static F32 WidenFp16(U32 bits) {
    const F32 subnormal = __builtin_convertvector(Bits<I32>(bits), F32) * 0x1p-24f;
    return bits < 0x400 ? subnormal : Bits<F32>((bits << 13) + (112u << 23));
  }

  template <bool kIsFp16>
  static U32 Store(F32 scale) {
    if constexpr (kIsFp16) return RoundToFp16(scale);
    return RoundToBf16(Bits<U32>(scale));
  }
  template <bool kIsFp16>
  static F32 Widen(U32 bits) {
    if constexpr (kIsFp16) return WidenFp16(bits);
    return Bits<F32>(bits << 16);
  }

  // A scale of the dtype in the interval: the one nearest its middle, or the neighbour across.
  template <bool kIsFp16>
  static I32 ScaleInside(const Interval& scales, F32 middle, U32* scale_bits) {
    constexpr uint32_t kSteps[] = {0, ~0u, 1};
    const U32 nearest = Store<kIsFp16>(middle);
    *scale_bits = nearest;
    I32 is_inside = {};
    for (const uint32_t step : kSteps) {
      const U32 candidate = nearest + step;
      const I32 bits = Bits<I32>(Widen<kIsFp16>(candidate));
      const I32 fits = (bits >= scales.lowest) & (bits <= scales.highest) & ~is_inside;
      *scale_bits = fits ? candidate : *scale_bits;
      is_inside |= fits;
    }
    return is_inside;
  }

  // Likewise, but one that bf16 holds as well, if possible.
  template <bool kIsFp16>
  static I32 ExactScale(const Interval& scales, F32 middle, U32* scale_bits) {
    if constexpr (!kIsFp16) return ScaleInside<false>(scales, middle, scale_bits);
    U32 bf16;
    I32 is_bf16 = ScaleInside<false>(scales, middle, &bf16);
    const F32 scale = Bits<F32>(bf16 << 16);
    const U32 same = RoundToFp16(scale);
    is_bf16 &= WidenFp16(same) == scale;
    const I32 is_inside = ScaleInside<true>(scales, middle, scale_bits);
    *scale_bits = is_bf16 ? same : *scale_bits;
    return is_bf16 | is_inside;
  }

  // Where neither rounding to the dtype nor a step to a neighbour needs care for zero or infinity.
  template <bool kIsFp16>
  static I32 IsFarFromLimits(F32 middle) {
    if constexpr (kIsFp16) return (middle > 0x1p-22f) & (middle < 0x1.ep15f);
    return I32{} - 1;  // Groups::is_usual has seen to it
  }

  template <bool kIsFp16>
  static Found Search(const Groups& groups) {
    Found found;
    I32 open = groups.is_usual;
    for (int peak_code = kMaxPeak; peak_code >= 1 && Any(open); --peak_code) {
      Interval multiples;
      const I32 is_possible = Explain(groups, peak_code, open, &multiples);
      if (!Any(is_possible)) continue;
      const Interval scales = Divide(multiples);
      const F32 middle = Bits<F32>(scales.lowest) * 0.5f + Bits<F32>(scales.highest) * 0.5f;
      open &= IsFarFromLimits<kIsFp16>(middle) | ~is_possible;
      found.is_nearest &= open;
      const I32 is_explained = is_possible & open;
      U32 scale_bits;
      const I32 is_exact = ExactScale<kIsFp16>(scales, middle, &scale_bits) & is_explained;
      const I32 is_first = is_explained & ~is_exact & ~found.is_nearest;
      scale_bits = is_exact ? scale_bits : Store<kIsFp16>(middle);
      found.scale_bits = (is_exact | is_first) ? scale_bits : found.scale_bits;
      found.peak_code = (is_exact | is_first) ? U32{} + peak_code : found.peak_code;
      found.is_exact |= is_exact;
      found.is_nearest = (found.is_nearest | is_first) & ~is_exact;
      open &= ~is_exact;
    }
    return found;
  }

  // Counts what the reader does not get back of the `counted` groups.
  static void Measure(const Groups& groups, F32 codes_per_unit, F32 scale, I32 counted,
                      Sums* sums) {
    const auto compare = [&](U32 size) {
      const F32 code = (Bits<F32>(size) * codes_per_unit + kToInteger) - kToInteger;
      const I32 ulp = Bits<I32>(RoundToBf16(Bits<U32>(code * scale))) - Bits<I32>(size >> 16);
      sums->n_inexact_values += (ulp != 0) & counted;
      sums->worst_ulp = Max(sums->worst_ulp, Bits<U32>(Max(ulp, -ulp) & counted));
    };
    for (const U32& pair : groups.pairs) {
      compare(Low(pair) & ~kSignBit);
      compare(High(pair) & ~kSignBit);
    }
  }

  // Writes nibbles of all lanes; `codes_per_unit` has the scale's sign.
  static void Pack(const Groups& groups, F32 codes_per_unit, std::byte* packed) {
    // Nibbles are codes plus 8. Every term below brings the bits of kToInteger along; of those
    // shifted left, but for the lowest three, nothing is left.
    constexpr uint32_t kIntegerBits = 0x4b400000u;
    constexpr int kWords = 4;
    constexpr int kPairsPerWord = kPairs / kWords;
    U32 words[kWords];
    for (int word = 0; word < kWords; ++word) {
      U32 nibbles = {};
      for (int i = kPairsPerWord - 1; i >= 0; --i) {
        const U32 pair = groups.pairs[word * kPairsPerWord + i];
        nibbles = (nibbles << 4) + Bits<U32>(Bits<F32>(High(pair)) * codes_per_unit + kToInteger);
        nibbles = (nibbles << 4) + Bits<U32>(Bits<F32>(Low(pair)) * codes_per_unit + kToInteger);
      }
      words[word] = nibbles + (0x88888888u - kIntegerBits * 0x111u);
    }
    Zip(&words[0], &words[2], Lanes());
    Zip(&words[1], &words[3], Lanes());
    Zip(&words[0], &words[1], Lanes());
    Zip(&words[2], &words[3], Lanes());
    __builtin_memcpy(packed, words, sizeof words);
  }

  template <bool kIsFp16>
  static uint32_t Finish(const Groups& groups, const Found& found, std::byte* packed,
                         std::byte* scales, Sums* sums) {
    const I32 is_solved = found.is_exact | found.is_nearest;
    const I32 is_negative = found.peak_code == kMaxPeak
                                ? groups.is_peak_positive
                                : groups.n_negative_zeros > groups.n_positive_zeros;
    const U32 sign = Bits<U32>(is_negative) & kSignBit;
    const F32 codes_per_unit =
        __builtin_convertvector(Bits<I32>(found.peak_code), F32) / Bits<F32>(groups.peak);
    Pack(groups, Bits<F32>(Bits<U32>(codes_per_unit) | sign), packed);
    const auto stored =
        __builtin_convertvector(found.scale_bits | (sign >> 16), typename Isa::HalfU16);
    __builtin_memcpy(scales, &stored, sizeof stored);

    sums->n_groups += is_solved;
    sums->n_exact += found.is_exact;
    sums->n_negative_scales += is_negative & is_solved;
    const U32 n_lost = is_negative ? groups.n_positive_zeros : groups.n_negative_zeros;
    sums->n_zero_sign_lost += n_lost & Bits<U32>(is_solved);
    for (int k = 1; k <= kMaxPeak; ++k) {
      sums->n_by_peak_code[k] += (found.peak_code == static_cast<uint32_t>(k)) & is_solved;
    }
    if (Any(found.is_nearest)) {
      Measure(groups, codes_per_unit, Widen<kIsFp16>(found.scale_bits), found.is_nearest, sums);
    }
    return Isa::SignBits(~is_solved);
  }

  template <bool kIsFp16>
  static int64_t RecoverAs(const GridBatch& batch, uint32_t* left_over, GridSums* sums) {
    Sums lane_sums;
    int64_t n_left_over = 0;
    int64_t first = 0;
    for (; first + kLanes <= batch.n_groups; first += kLanes) {
      const Groups groups = Prepare(batch.source + first * 64);
      const Found found = Search<kIsFp16>(groups);
      uint32_t unsolved = Finish<kIsFp16>(groups, found, batch.packed + first * 16,
                                          batch.scales + first * 2, &lane_sums);
      for (; unsolved != 0; unsolved &= unsolved - 1) {
        left_over[n_left_over++] = static_cast<uint32_t>(first + __builtin_ctz(unsolved));
      }
    }
    for (; first < batch.n_groups; ++first) left_over[n_left_over++] = static_cast<uint32_t>(first);
    AddLanes(lane_sums, sums);
    return n_left_over;
  }

  static void AddLanes(const Sums& lanes, GridSums* sums) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums->n_groups -= lanes.n_groups[lane];
      sums->n_exact -= lanes.n_exact[lane];
      sums->n_negative_scales -= lanes.n_negative_scales[lane];
      sums->n_inexact_values -= lanes.n_inexact_values[lane];
      sums->n_zero_sign_lost += lanes.n_zero_sign_lost[lane];
      for (int k = 1; k <= kMaxPeak; ++k) {
        sums->n_by_peak_code[k] -= lanes.n_by_peak_code[k][lane];
      }
      if (lanes.worst_ulp[lane] > sums->worst_ulp) sums->worst_ulp = lanes.worst_ulp[lane];
    }
  }
};

}  // namespace nibble::repack
