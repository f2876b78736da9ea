// Sixteen floats as four NEON registers, for the templates of floats16/. Everything here is local
// to the file that includes it: nothing may leak to files compiled for older CPUs.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace nibble::kernels::neon {
namespace {  // NOLINT(google-build-namespaces): local to each file that includes this

[[maybe_unused]] float32x4_t WidenBf16(const void* bits) {
  const uint16x4_t half = vld1_u16(static_cast<const uint16_t*>(bits));
  return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}

struct Floats {
  static constexpr int kQueriesTogether = 4;

  float32x4_t part[4];  // part i: lanes 4 i .. 4 i + 3

  static Floats All(float value) {
    const float32x4_t all = vdupq_n_f32(value);
    return {{all, all, all, all}};
  }
  static Floats Load(const void* values) {
    const auto* from = static_cast<const float*>(values);
    return {{vld1q_f32(from), vld1q_f32(from + 4), vld1q_f32(from + 8), vld1q_f32(from + 12)}};
  }
  static Floats LoadBf16(const std::byte* bits) {
    return {{WidenBf16(bits), WidenBf16(bits + 8), WidenBf16(bits + 16), WidenBf16(bits + 24)}};
  }
  static Floats LoadInt8(const std::byte* codes) {
    const int8x16_t all = vld1q_s8(reinterpret_cast<const int8_t*>(codes));
    const int16x8_t low = vmovl_s8(vget_low_s8(all));
    const int16x8_t high = vmovl_s8(vget_high_s8(all));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  void Store(float* y) const {
    for (int i = 0; i < 4; ++i) vst1q_f32(y + 4 * i, part[i]);
  }
  // Rounds values within the type's range, ties to even, and returns their sum.
  int32_t StoreRounded(int8_t* to) const {
    int16_t whole[16];
    const int32_t sum = StoreRounded(whole);
    vst1q_s8(to, vcombine_s8(vmovn_s16(vld1q_s16(whole)), vmovn_s16(vld1q_s16(whole + 8))));
    return sum;
  }
  int32_t StoreRounded(int16_t* to) const {
    int32x4_t sum = vdupq_n_s32(0);
    for (int i = 0; i < 4; ++i) {
      const int32x4_t whole = vcvtnq_s32_f32(part[i]);
      vst1_s16(to + 4 * i, vmovn_s32(whole));
      sum = vaddq_s32(sum, whole);
    }
    return vaddvq_s32(sum);
  }
};

// f of each register.
template <typename F, typename... Values>
[[maybe_unused]] Floats Each(F f, const Values&... values) {
  return {{f(values.part[0]...), f(values.part[1]...), f(values.part[2]...), f(values.part[3]...)}};
}

[[maybe_unused]] float32x4_t Choose(float32x4_t mask, float32x4_t a, float32x4_t b) {
  return vbslq_f32(vreinterpretq_u32_f32(mask), a, b);
}
[[maybe_unused]] float32x4_t MinOf(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
[[maybe_unused]] float32x4_t MaxOf(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
[[maybe_unused]] float32x4_t LessThan(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_u32(vcltq_f32(a, b));
}
[[maybe_unused]] float32x4_t Both(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)));
}
[[maybe_unused]] float32x4_t Power(float32x4_t shifted) {
  const int32x4_t bits = vshlq_n_s32(vreinterpretq_s32_f32(shifted), 23);
  return vreinterpretq_f32_s32(vaddq_s32(bits, vdupq_n_s32(0x3f800000)));
}

[[maybe_unused]] Floats operator+(Floats a, Floats b) {
  return Each([](float32x4_t p, float32x4_t q) { return vaddq_f32(p, q); }, a, b);
}
[[maybe_unused]] Floats operator-(Floats a, Floats b) {
  return Each([](float32x4_t p, float32x4_t q) { return vsubq_f32(p, q); }, a, b);
}
[[maybe_unused]] Floats operator*(Floats a, Floats b) {
  return Each([](float32x4_t p, float32x4_t q) { return vmulq_f32(p, q); }, a, b);
}
[[maybe_unused]] Floats operator/(Floats a, Floats b) {
  return Each([](float32x4_t p, float32x4_t q) { return vdivq_f32(p, q); }, a, b);
}
[[maybe_unused]] Floats Min(Floats a, Floats b) {
  return Each([](float32x4_t p, float32x4_t q) { return MinOf(p, q); }, a, b);
}
[[maybe_unused]] Floats Max(Floats a, Floats b) {
  return Each([](float32x4_t p, float32x4_t q) { return MaxOf(p, q); }, a, b);
}
[[maybe_unused]] Floats And(Floats a, Floats b) {
  return Each([](float32x4_t p, float32x4_t q) { return Both(p, q); }, a, b);
}
[[maybe_unused]] Floats Less(Floats a, Floats b) {
  return Each([](float32x4_t p, float32x4_t q) { return LessThan(p, q); }, a, b);
}
[[maybe_unused]] Floats Abs(Floats a) {
  return Each([](float32x4_t p) { return vabsq_f32(p); }, a);
}
[[maybe_unused]] Floats Negate(Floats a) {
  return Each([](float32x4_t p) { return vnegq_f32(p); }, a);
}
[[maybe_unused]] Floats Fma(Floats a, Floats b, Floats c) {
  return Each([](float32x4_t p, float32x4_t q, float32x4_t r) { return vfmaq_f32(r, p, q); }, a, b,
              c);
}
// a where the mask is set, else b.
[[maybe_unused]] Floats Select(Floats mask, Floats a, Floats b) {
  return Each([](float32x4_t m, float32x4_t p, float32x4_t q) { return Choose(m, p, q); }, mask, a,
              b);
}
// 2^n, n standing in the lowest bits of `shifted`.
[[maybe_unused]] Floats PowerOfTwo(Floats shifted) {
  return Each([](float32x4_t p) { return Power(p); }, shifted);
}

// Adds lanes l and l + 8, then 4, 2, 1.
[[maybe_unused]] float AddLanes(Floats lanes) {
  const float32x4_t four =
      vaddq_f32(vaddq_f32(lanes.part[0], lanes.part[2]), vaddq_f32(lanes.part[1], lanes.part[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

[[maybe_unused]] float MaxLanes(Floats lanes) {
  return vmaxvq_f32(
      MaxOf(MaxOf(lanes.part[0], lanes.part[2]), MaxOf(lanes.part[1], lanes.part[3])));
}

}  // namespace
}  // namespace nibble::kernels::neon
