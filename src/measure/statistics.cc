#include "measure/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "measure/python_random.h"

namespace nibble::measure {
namespace {

constexpr double kLowPercent = 2.5;
constexpr double kHighPercent = 97.5;
constexpr double kNormalQuantile = 1.959963984540054;  // 97.5 % of the standard normal

double PercentileOfSorted(std::span<const double> sorted, double percent) {
  const double rank = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  if (below + 1 == sorted.size()) return sorted[below];
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[below + 1] - sorted[below]);
}

size_t MostLikely(const Forecast& forecast) {
  return static_cast<size_t>(std::ranges::max_element(forecast.probabilities) -
                             forecast.probabilities.begin());
}

}  // namespace

double Mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double Percentile(std::vector<double> values, double percent) {
  CHECK(!values.empty());
  std::ranges::sort(values);
  return PercentileOfSorted(values, percent);
}

double Median(std::vector<double> values) { return Percentile(std::move(values), 50); }

Interval BootstrapMean(std::span<const double> values, const Bootstrap& bootstrap) {
  if (values.empty()) return {};
  PythonRandom random(bootstrap.seed);
  const auto n = static_cast<uint32_t>(values.size());
  std::vector<double> means(bootstrap.n_resamples);
  for (double& mean : means) {
    double sum = 0;
    for (uint32_t i = 0; i < n; ++i) sum += values[random.RandBelow(n)];
    mean = sum / n;
  }
  std::ranges::sort(means);
  return {PercentileOfSorted(means, kLowPercent), PercentileOfSorted(means, kHighPercent)};
}

Interval WilsonInterval(int64_t n_successes, int64_t n_total) {
  if (n_total == 0) return {0, 1};
  const auto n = static_cast<double>(n_total);
  const double share = static_cast<double>(n_successes) / n;
  const double z2_n = kNormalQuantile * kNormalQuantile / n;
  const double center = (share + z2_n / 2) / (1 + z2_n);
  const double half =
      kNormalQuantile * std::sqrt((share * (1 - share) + z2_n / 4) / n) / (1 + z2_n);
  return {center - half, center + half};
}

double McNemarExact(int64_t n_only_first, int64_t n_only_second) {
  const int64_t n = n_only_first + n_only_second;
  const int64_t k = std::min(n_only_first, n_only_second);
  double tail = 0;  // of Binomial(n, 1/2), at most k
  for (int64_t i = 0; i <= k; ++i) {
    const auto a = static_cast<double>(n + 1);
    const auto b = static_cast<double>(i + 1);
    tail += std::exp(std::lgamma(a) - std::lgamma(b) - std::lgamma(a - b + 1) -
                     static_cast<double>(n) * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

double ExpectedCalibrationError(std::span<const Forecast> forecasts, int n_bins) {
  struct Bin {
    double confidence = 0;
    double n_correct = 0;
  };
  std::vector<Bin> bins(n_bins);
  for (const Forecast& forecast : forecasts) {
    const size_t answer = MostLikely(forecast);
    const double confidence = forecast.probabilities[answer];
    const int above = static_cast<int>(std::ceil(confidence * n_bins));
    Bin& bin = bins[std::clamp(above, 1, n_bins) - 1];
    bin.confidence += confidence;
    bin.n_correct += answer == forecast.gold ? 1 : 0;
  }
  double error = 0;
  for (const Bin& bin : bins) error += std::abs(bin.n_correct - bin.confidence);
  return forecasts.empty() ? 0 : error / static_cast<double>(forecasts.size());
}

double BrierScore(std::span<const Forecast> forecasts) {
  double sum = 0;
  for (const Forecast& forecast : forecasts) {
    for (size_t label = 0; label < forecast.probabilities.size(); ++label) {
      const double miss = forecast.probabilities[label] - (label == forecast.gold ? 1 : 0);
      sum += miss * miss;
    }
  }
  return forecasts.empty() ? 0 : sum / static_cast<double>(forecasts.size());
}

}  // namespace nibble::measure
