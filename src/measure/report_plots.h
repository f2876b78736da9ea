// The plots of the HTML report as SVG, by hand: no script, colours from the page's variables, so
// that they print and follow dark mode. Tested by tests/interop/test_compare.py.
#pragma once

#include <string>
#include <string_view>

#include "measure/compare.h"

namespace nibble::measure {

// Text in HTML and SVG.
std::string Escape(std::string_view text);

// Each comparison's difference in accuracy with its interval, beside the line of no difference.
// Each of these is "" if the report holds nothing to draw.
std::string DifferencePlot(const Report& report);
// One point a build: decode speed across, accuracy of a suite up.
std::string SpeedQualityPlot(const Report& report, const std::string& suite);
// One bar a build: bytes of its parts.
std::string AnatomyPlot(const Report& report);
// Share of needles found by length and depth.
std::string HeatMap(const Heat& heat);

}  // namespace nibble::measure
