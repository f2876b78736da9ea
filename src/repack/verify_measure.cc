#include "repack/verify_measure.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/float16.h"
#include "repack/verify_group.h"

namespace nibble::repack {
namespace {

constexpr int kLargestLevel = 8;

using Levels = std::array<int8_t, kLevelGroup>;

// Are these levels, in -8 .. 8, those of the source? They are codes under a positive scale or,
// mirrored, under a negative one; as there is no code +8, one of the two forms may not exist.
bool Explain(std::span<const std::byte, 64> source, const Levels& levels) {
  const bool is_mirrored = std::ranges::max(levels) == kLargestLevel;
  std::array<std::byte, kLevelGroup / 2> packed;
  for (size_t i = 0; i < packed.size(); ++i) {
    const int low = (is_mirrored ? -levels[2 * i] : levels[2 * i]) + 8;
    const int high = (is_mirrored ? -levels[2 * i + 1] : levels[2 * i + 1]) + 8;
    if (low > 15 || high > 15) return false;
    packed[i] = static_cast<std::byte>(low | (high << 4));
  }
  // Any scale of that sign: what is asked is whether codes are right.
  const uint16_t one = FloatToBf16(is_mirrored ? -1.0f : 1.0f);
  std::array<std::byte, 2> scale;
  std::memcpy(scale.data(), &one, sizeof one);
  return ProveGroup(source, packed, scale.data(), DType::kBF16).has_right_codes;
}

}  // namespace

void Measurement::Merge(const Measurement& other) {
  n_values += other.n_values;
  sum_squares += other.sum_squares;
  sum_squared_error += other.sum_squared_error;
  max_error = std::max(max_error, other.max_error);
  n_levels += other.n_levels;
  n_moved += other.n_moved;
}

void Measurement::AddValue(float source, float read) {
  const double error = static_cast<double>(read) - static_cast<double>(source);
  ++n_values;
  sum_squares += static_cast<double>(source) * static_cast<double>(source);
  sum_squared_error += error * error;
  max_error = std::max(max_error, std::fabs(error));
}

double Measurement::relative_error() const {
  if (sum_squared_error == 0) return 0;
  return std::sqrt(sum_squared_error / sum_squares);
}

std::optional<double> Measurement::snr_db() const {
  if (sum_squared_error == 0) return std::nullopt;
  return 10 * std::log10(sum_squares / sum_squared_error);
}

Json Measurement::ToJson() const {
  const std::optional<double> snr = snr_db();
  Json json = {{"values", n_values}, {"relative_error", relative_error()},
               {"snr_db", nullptr},  {"max_error", max_error},
               {"levels", n_levels}, {"levels_moved", n_moved}};
  if (snr.has_value()) json["snr_db"] = *snr;
  return json;
}

std::optional<int> CountMovedLevels(std::span<const std::byte, 64> source,
                                    std::span<const int8_t, kLevelGroup> packed_levels) {
  std::array<float, kLevelGroup> values;
  float peak = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, source.data() + i * sizeof bits, sizeof bits);
    values[i] = Bf16ToFloat(bits);
    if (!std::isfinite(values[i])) return std::nullopt;
    peak = std::max(peak, std::fabs(values[i]));
  }
  std::optional<int> fewest;
  const auto count = [&](const Levels& levels) {
    int n_moved = 0;
    for (size_t i = 0; i < levels.size(); ++i) n_moved += levels[i] != packed_levels[i] ? 1 : 0;
    fewest = std::min(fewest.value_or(n_moved), n_moved);
  };
  if (peak == 0) {
    count(Levels{});
    return fewest;
  }
  for (int peak_level = 1; peak_level <= kLargestLevel; ++peak_level) {
    // Two roundings to bf16, of a value and of the peak, move a quotient by 2^-7 of itself or so.
    constexpr float kSlack = 17.0f / 256;
    Levels levels;
    bool fits = true;
    for (size_t i = 0; i < levels.size() && fits; ++i) {
      const float level = values[i] / peak * static_cast<float>(peak_level);
      levels[i] = static_cast<int8_t>(std::lround(level));
      fits = std::fabs(level - static_cast<float>(levels[i])) <= kSlack;
    }
    if (fits && Explain(source, levels)) count(levels);
  }
  return fewest;
}

}  // namespace nibble::repack
