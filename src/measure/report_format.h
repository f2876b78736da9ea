// How reports print figures, the same in text, Markdown and HTML.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "measure/compare.h"

namespace nibble::measure {

// "1.13 MB"; "-" for 0, which stands for unknown.
std::string FormatSize(int64_t n_bytes);
// "97.7 %" of a share, else three digits; "" if there is none.
std::string FormatValue(const Metric& metric, const std::optional<double>& value);
// "+0.4 (-0.2 to +1.1)": points of a share, else as it is; "" if there is none.
std::string FormatDifference(const Metric& metric);
// "97.7 % (96.6 to 98.5)"
std::string FormatScore(const Metric& metric);
// "0.031", "< 0.001"
std::string FormatP(double p);
// "decode at 128 tokens, 4 at once"
std::string FormatWork(const SpeedFigure& row);

}  // namespace nibble::measure
