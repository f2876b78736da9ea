// Sixteen floats of any instruction set: tails, and exp and tanh as scalar/math.h has them,
// operation by operation.
//
// `Floats` is a struct of the instruction set's own lanes.h: 16 lanes with All, Load, LoadBf16,
// LoadInt8, Store, StoreRounded, kQueriesTogether (as many as its registers hold), + - * /, Fma,
// Min, Max, Abs, Negate, Less, And, Select, PowerOfTwo, AddLanes and MaxLanes. Min(a, b) is a < b ?
// a : b and Max(a, b) is a > b ? a : b, also for NaN; masks have all bits of a lane set or none.
// Everything here is local to the file that includes it: what is compiled for newer CPUs must not
// leak to files compiled for older ones.
#pragma once

#include <cstdint>
#include <cstring>

namespace nibble::kernels::floats16 {
namespace {  // NOLINT(google-build-namespaces): local to each file that includes this

inline constexpr int64_t kLanes = 16;

// x[0 .. n), then zeros.
template <typename Floats>
[[maybe_unused]] Floats LoadFirst(const float* x, int64_t n) {
  if (n >= kLanes) return Floats::Load(x);
  float lanes[kLanes] = {};
  std::memcpy(lanes, x, static_cast<size_t>(n > 0 ? n : 0) * sizeof(float));
  return Floats::Load(lanes);
}

template <typename Floats>
[[maybe_unused]] void StoreFirst(Floats values, float* y, int64_t n) {
  if (n >= kLanes) return values.Store(y);
  float lanes[kLanes];
  values.Store(lanes);
  std::memcpy(y, lanes, static_cast<size_t>(n) * sizeof(float));
}

// The mask of lanes [begin, end).
template <typename Floats>
[[maybe_unused]] Floats Between(int64_t begin, int64_t end) {
  int32_t lanes[kLanes];
  for (int32_t lane = 0; lane < kLanes; ++lane) lanes[lane] = lane >= begin && lane < end ? -1 : 0;
  return Floats::Load(lanes);
}

template <typename Floats>
[[maybe_unused]] Floats Exp(Floats x) {
  x = Min(Floats::All(88.0f), Max(Floats::All(-87.0f), x));
  const Floats round = Floats::All(12582912.0f);
  const Floats shifted = x * Floats::All(1.44269504088896341f) + round;
  const Floats n = shifted - round;
  x = x - n * Floats::All(0.693359375f);
  x = x - n * Floats::All(-2.12194440e-4f);
  constexpr float kCoefficients[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                                     1.6666665459e-1f, 5.0000001201e-1f};
  Floats p = Floats::All(1.9875691500e-4f);
  for (const float coefficient : kCoefficients) p = p * x + Floats::All(coefficient);
  p = p * (x * x) + x + Floats::All(1.0f);
  return p * PowerOfTwo(shifted);
}

template <typename Floats>
[[maybe_unused]] Floats Tanh(Floats x) {
  const Floats size = Abs(x);
  const Floats z = x * x;
  constexpr float kCoefficients[] = {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                                     -3.33332819422e-1f};
  Floats p = Floats::All(-5.70498872745e-3f);
  for (const float coefficient : kCoefficients) p = p * z + Floats::All(coefficient);
  const Floats small = p * z * x + x;
  const Floats one = Floats::All(1.0f);
  const Floats two = Floats::All(2.0f);
  const Floats power = Exp(two * Min(Floats::All(40.0f), size));
  const Floats large = one - two / (power + one);
  const Floats signed_large = Select(Less(x, Floats::All(0.0f)), Negate(large), large);
  return Select(Less(size, Floats::All(0.625f)), small, signed_large);
}

}  // namespace
}  // namespace nibble::kernels::floats16
