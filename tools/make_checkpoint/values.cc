#include "values.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/float16.h"

namespace nibble::make_checkpoint {
namespace {

constexpr int kPatternBits = 15;  // 32,768 code patterns: 1 MB, within a core's L2 cache
constexpr int kGaussianBits = 12;
constexpr int kFactorBits = 12;
constexpr int kPeakCode = 8;
constexpr float kLogScaleDeviation = 0.25F;  // e^(2 * 0.25) = 1.6

// Tells apart the tables' random numbers; no tensor has such a key, but for a hash collision.
constexpr uint64_t kCodesKey = 1;
constexpr uint64_t kGaussiansKey = 2;
constexpr uint64_t kFactorsKey = 3;

// splitmix64: the counter's step and the finaliser.
uint64_t Hash(uint64_t key, uint64_t counter) {
  uint64_t x = key + counter * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t NameKey(uint64_t seed, std::string_view name) {
  uint64_t key = Hash(seed, name.size());
  for (const char c : name) key = Hash(key ^ static_cast<unsigned char>(c), 1);
  return key;
}

// Mean 0, deviation 1: the sum of 12 uniform numbers, exact in integers and so the same everywhere.
float Gaussian(uint64_t key, uint64_t counter) {
  int64_t sum = 0;
  for (uint64_t i = 0; i < 3; ++i) {
    const uint64_t bits = Hash(key, 3 * counter + i);
    for (int part = 0; part < 4; ++part) sum += static_cast<int64_t>(bits >> (16 * part) & 0xffff);
  }
  return static_cast<float>(sum - 6 * 0xffff) / 65536;
}

// Quantises 32 values: the extreme gets the code -8, or +-peak_code if that is below 8.
void Quantise(std::span<const float> values, int peak_code, std::span<int8_t> codes) {
  const float extreme = *std::ranges::max_element(values, {}, [](float v) { return std::abs(v); });
  const float scale = extreme / static_cast<float>(peak_code == kPeakCode ? -8 : peak_code);
  for (size_t i = 0; i < values.size(); ++i) {
    const int code = static_cast<int>(std::nearbyint(values[i] / scale));
    codes[i] = static_cast<int8_t>(std::min(code, kPeakCode - 1));
  }
}

// Of a finite float, as FloatToBf16, but without its branch, so that it vectorises.
uint16_t RoundFinite(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

void WriteCodes(const int8_t* codes, float scale, uint16_t* out) {
  for (int i = 0; i < kGroup; ++i) out[i] = RoundFinite(static_cast<float>(codes[i]) * scale);
}

void WriteGaussians(const float* gaussians, float factor, float mean, uint16_t* out) {
  for (int i = 0; i < kGroup; ++i) out[i] = RoundFinite(mean + gaussians[i] * factor);
}

float RoundTo(DType dtype, float value) {
  return dtype == DType::kF16 ? Fp16ToFloat(FloatToFp16(value)) : RoundToBf16(value);
}

}  // namespace

Values::Values(uint64_t seed, DType scale_dtype)
    : seed_(seed),
      scale_dtype_(scale_dtype),
      codes_(size_t{kGroup} << kPatternBits),
      gaussians_(size_t{kGroup} << kGaussianBits) {
  for (size_t i = 0; i < gaussians_.size(); ++i) gaussians_[i] = Gaussian(kGaussiansKey, i);
  std::array<float, kGroup> group;
  double square_sum = 0;
  for (size_t p = 1; p < codes_.size() / kGroup; ++p) {  // pattern 0 stays zero
    for (size_t i = 0; i < kGroup; ++i) group[i] = Gaussian(kCodesKey, p * kGroup + i);
    const int peak_code = p % 8 == 0 ? 1 + static_cast<int>(p / 8 % 7) : kPeakCode;
    const std::span<int8_t> codes(&codes_[p * kGroup], kGroup);
    Quantise(group, peak_code, codes);
    for (const int code : codes) square_sum += code * code;
  }
  code_rms_ = static_cast<float>(std::sqrt(square_sum / static_cast<double>(codes_.size())));
}

Values::Tensor Values::ForTensor(std::string_view name, Fill fill) const {
  Tensor tensor;
  tensor.values_ = this;
  tensor.fill_ = fill;
  tensor.key_ = NameKey(seed_, name);
  for (size_t i = 0; i < Tensor::kFactors; ++i) {
    const float log_normal = std::exp(kLogScaleDeviation * Gaussian(kFactorsKey, i));
    tensor.factors_[i] = fill.on_grid
                             ? RoundTo(scale_dtype_, fill.deviation / code_rms_ * log_normal)
                             : fill.deviation * log_normal;
  }
  return tensor;
}

void Values::Tensor::Write(int64_t first_group, std::span<uint16_t> out) const {
  static_assert(kFactors == size_t{1} << kFactorBits);
  std::array<uint16_t, kGroup> last;  // a group that `out` ends within
  for (size_t begin = 0; begin < out.size(); begin += kGroup) {
    const auto group = static_cast<uint64_t>(first_group) + begin / kGroup;
    const uint64_t random = Hash(key_, group);
    const float factor = factors_[random % kFactors];
    const uint64_t pattern = random >> kFactorBits;
    const bool is_whole = out.size() - begin >= kGroup;
    uint16_t* target = is_whole ? &out[begin] : last.data();
    if (fill_.on_grid) {
      CHECK(is_whole);
      const bool is_negative = random >> 63 != 0;
      const size_t index = pattern % (size_t{1} << kPatternBits);
      WriteCodes(&values_->codes_[index * kGroup], is_negative ? -factor : factor, target);
    } else {
      const size_t index = pattern % (size_t{1} << kGaussianBits);
      WriteGaussians(&values_->gaussians_[index * kGroup], factor, fill_.mean, target);
    }
    if (!is_whole) std::copy_n(last.begin(), out.size() - begin, &out[begin]);
  }
}

}  // namespace nibble::make_checkpoint
