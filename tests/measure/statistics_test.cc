// Statistics against values from NumPy, SciPy, statsmodels and scikit-learn, and the coverage of
// the interval by simulation.
#include "measure/statistics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>
#include <string>

namespace nibble::measure {
namespace {

std::vector<double> ReadNumbers(std::istream& in, size_t n) {
  std::vector<double> numbers(n);
  for (double& number : numbers) in >> number;
  return numbers;
}

void ExpectInterval(const Interval& interval, const std::vector<double>& expected) {
  EXPECT_NEAR(interval.low, expected[0], 1e-12);
  EXPECT_NEAR(interval.high, expected[1], 1e-12);
}

void CheckForecasts(std::istream& in) {
  size_t n = 0;
  size_t n_labels = 0;
  in >> n >> n_labels;
  std::vector<Forecast> forecasts(n);
  for (Forecast& forecast : forecasts) {
    in >> forecast.gold;
    forecast.probabilities = ReadNumbers(in, n_labels);
  }
  const std::vector<double> expected = ReadNumbers(in, 2);
  EXPECT_NEAR(ExpectedCalibrationError(forecasts), expected[0], 1e-12);
  EXPECT_NEAR(BrierScore(forecasts), expected[1], 1e-12);
}

TEST(Statistics, AgreeWithTheUsualLibraries) {
  std::ifstream in(NIBBLE_SOURCE_DIR "/tests/measure/golden/statistics.txt");
  std::map<std::string, int> n_checked;
  for (std::string name; in >> name; ++n_checked[name]) {
    if (name == "bootstrap") {
      Bootstrap bootstrap;
      size_t n = 0;
      in >> bootstrap.n_resamples >> bootstrap.seed >> n;
      const std::vector<double> values = ReadNumbers(in, n);
      ExpectInterval(BootstrapMean(values, bootstrap), ReadNumbers(in, 2));
    } else if (name == "mcnemar") {
      int64_t first = 0;
      int64_t second = 0;
      in >> first >> second;
      EXPECT_NEAR(McNemarExact(first, second), ReadNumbers(in, 1)[0], 1e-10);
    } else if (name == "wilson") {
      int64_t n = 0;
      int64_t total = 0;
      in >> n >> total;
      ExpectInterval(WilsonInterval(n, total), ReadNumbers(in, 2));
    } else if (name == "percentile") {
      double percent = 0;
      size_t n = 0;
      in >> percent >> n;
      const std::vector<double> values = ReadNumbers(in, n);
      EXPECT_NEAR(Percentile(values, percent), ReadNumbers(in, 1)[0], 1e-12);
    } else if (name == "forecast") {
      CheckForecasts(in);
    }
    ASSERT_TRUE(in.good()) << name;
  }
  const std::map<std::string, int> expected = {
      {"bootstrap", 4}, {"forecast", 2}, {"mcnemar", 7}, {"percentile", 5}, {"wilson", 5}};
  EXPECT_EQ(n_checked, expected);
}

// Of many experiments with a known difference, the share whose interval holds it: 95 % but for the
// noise of 400 experiments (three standard errors are 3.3 points) and the bootstrap's own bias,
// which makes intervals of 150 records a little narrow.
TEST(BootstrapMean, CoversTheTruthAsOftenAsItSays) {
  constexpr double kLost = 0.10;
  constexpr double kGained = 0.04;
  constexpr int kExperiments = 400;
  constexpr int kRecords = 150;
  std::mt19937 random(3);
  std::discrete_distribution<int> outcome({kLost, 1 - kLost - kGained, kGained});
  int n_covered = 0;
  for (int experiment = 0; experiment < kExperiments; ++experiment) {
    std::vector<double> differences(kRecords);
    for (double& difference : differences) difference = outcome(random) - 1;
    const Interval interval = BootstrapMean(differences, {.n_resamples = 400});
    n_covered += interval.Contains(kGained - kLost) ? 1 : 0;
  }
  EXPECT_GE(n_covered, 0.91 * kExperiments);
  EXPECT_LE(n_covered, 0.98 * kExperiments);
}

TEST(BootstrapMean, OfEqualsIsAPoint) {
  const Interval interval = BootstrapMean(std::vector<double>(20, 0.5));
  EXPECT_EQ(interval.low, 0.5);
  EXPECT_EQ(interval.high, 0.5);
}

}  // namespace
}  // namespace nibble::measure
