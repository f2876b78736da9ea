// The statistics that claims rest on: intervals, paired tests, calibration.
//
// Two builds are compared record by record, so what is resampled is the difference of each record,
// never the two builds apart. Everything is a function of its arguments: the bootstrap draws from
// Python's random.Random(seed). Tested by statistics_test.cc against NumPy, SciPy, statsmodels and
// scikit-learn (make_golden.py), and by simulation for the coverage of the interval.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nibble::measure {

struct Interval {
  double low = 0;
  double high = 0;

  bool Contains(double value) const { return low <= value && value <= high; }
};

double Mean(std::span<const double> values);

// Between the values of rank floor and ceil of percent / 100 * (n - 1), linearly, as
// numpy.percentile. `values` must not be empty.
double Percentile(std::vector<double> values, double percent);
double Median(std::vector<double> values);

struct Bootstrap {
  int n_resamples = 10'000;
  uint64_t seed = 0;
};

// 95 % interval of the mean by the percentile bootstrap; of no values: [0, 0].
Interval BootstrapMean(std::span<const double> values, const Bootstrap& bootstrap = {});

// Wilson's 95 % interval of a share; of none: [0, 1].
Interval WilsonInterval(int64_t n_successes, int64_t n_total);

// McNemar's exact test, two-sided: how likely a split at least this uneven is where the records
// that two builds answer differently go either way by chance. 1 if there are none.
double McNemarExact(int64_t n_only_first, int64_t n_only_second);

// What a classifier said about one record.
struct Forecast {
  std::vector<double> probabilities;  // of each label
  size_t gold = 0;
};

// Expected calibration error of the most likely label (the first among equals): the records'
// confidences fall into n_bins bins of equal width (low, high]; |accuracy - confidence| of each,
// weighted by its share.
double ExpectedCalibrationError(std::span<const Forecast> forecasts, int n_bins = 10);

// Mean over records of the sum over labels of (probability - [label is gold])^2: 0 to 2.
double BrierScore(std::span<const Forecast> forecasts);

}  // namespace nibble::measure
