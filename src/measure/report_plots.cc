#include "measure/report_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "measure/report_format.h"

namespace nibble::measure {
namespace {

constexpr double kWidth = 760;
constexpr double kLabelWidth = 170;
constexpr double kRowHeight = 26;

std::string Svg(double height, std::string_view title, const std::string& body) {
  return fmt::format(
      "<div class=\"wide\"><svg role=\"img\" aria-label=\"{0}\" viewBox=\"0 0 {1:g} {2:g}\">"
      "<title>{0}</title>{3}</svg></div>\n",
      Escape(title), kWidth, height, body);
}

std::string Label(double x, double y, std::string_view text, std::string_view anchor = "start",
                  std::string_view css = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>", x,
                     y, anchor, css, Escape(text));
}

std::string Line(double x1, double y1, double x2, double y2, std::string_view css) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>",
                     x1, y1, x2, y2, css);
}

// A step of 1, 2 or 5 times a power of ten that gives about five ticks.
double TickStep(double span) {
  const double step = std::pow(10, std::floor(std::log10(span / 5)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (span / (factor * step) <= 6) return factor * step;
  }
  return 10 * step;
}

struct Scale {
  double low = 0;
  double high = 1;
  double begin = 0;  // in the drawing
  double end = 1;

  double At(double value) const { return begin + (value - low) / (high - low) * (end - begin); }
};

Scale Widened(double low, double high, double begin, double end) {
  const double margin = high > low ? 0.08 * (high - low) : std::max(0.5, 0.1 * std::abs(high));
  return {low - margin, high + margin, begin, end};
}

std::vector<double> Ticks(const Scale& scale) {
  std::vector<double> ticks;
  const double step = TickStep(scale.high - scale.low);
  for (double tick = std::ceil(scale.low / step) * step; tick <= scale.high; tick += step) {
    ticks.push_back(std::abs(tick) < step / 2 ? 0 : tick);
  }
  return ticks;
}

}  // namespace

std::string Escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

namespace {

// One row of the plot of differences: label, interval, point, and its figures as text.
std::string DifferenceRow(const Comparison& comparison, const Scale& x, double y) {
  const Metric& metric = comparison.metrics[0];
  const double left = x.At(100 * metric.interval->low);
  const double right = x.At(100 * metric.interval->high);
  std::string row = Label(kLabelWidth - 12, y + 4, comparison.build, "end");
  row += Line(left, y, right, y, "bar");
  row += Line(left, y - 5, left, y + 5, "bar") + Line(right, y - 5, right, y + 5, "bar");
  row += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" class=\"{}\"/>",
                     x.At(100 * *metric.difference), y,
                     metric.interval->Contains(0) ? "same"
                     : *metric.difference > 0     ? "better"
                                                  : "worse");
  return row + Label(kWidth, y + 4, FormatDifference(metric), "end", "tick");
}

}  // namespace

std::string DifferencePlot(const Report& report) {
  std::vector<const Comparison*> rows;
  double low = 0;
  double high = 0;
  for (const Comparison& comparison : report.comparisons) {
    if (comparison.metrics.empty() || comparison.metrics[0].name != "accuracy") continue;
    const Interval& interval = *comparison.metrics[0].interval;
    rows.push_back(&comparison);
    low = std::min(low, 100 * interval.low);
    high = std::max(high, 100 * interval.high);
  }
  if (rows.empty()) return "";
  const Scale x = Widened(low, high, kLabelWidth, kWidth - 150);
  std::string body;
  std::string suite;
  double y = 0;
  for (const Comparison* comparison : rows) {
    if (comparison->suite != suite) {
      suite = comparison->suite;
      y += kRowHeight;
      body += Label(0, y, fmt::format("{}, {} records", suite, comparison->n), "start", "head");
    }
    y += kRowHeight;
    body += DifferenceRow(*comparison, x, y - 4);
  }
  const double bottom = y + 10;
  std::string grid;  // below the rows
  for (const double tick : Ticks(x)) {
    grid += Line(x.At(tick), 10, x.At(tick), bottom, tick == 0 ? "zero" : "grid");
    grid += Label(x.At(tick), bottom + 18, tick == 0 ? "0" : fmt::format("{:+g}", tick), "middle",
                  "tick");
  }
  grid += Label((x.begin + x.end) / 2, bottom + 38,
                "points of accuracy against " + report.reference + ", 95 % intervals", "middle",
                "tick");
  return Svg(bottom + 46, "Differences in accuracy", grid + body);
}

std::string SpeedQualityPlot(const Report& report, const std::string& suite) {
  struct Point {
    std::string name;
    double speed = 0;
    Metric score;
  };
  std::vector<Point> points;
  for (const BuildFacts& build : report.builds) {
    const auto score = build.scores.find(suite);
    if (!build.decode_tokens_per_s.has_value() || score == build.scores.end()) continue;
    points.push_back({build.name, *build.decode_tokens_per_s, score->second});
  }
  if (points.size() < 2) return "";
  const auto [slowest, fastest] = std::ranges::minmax(points, {}, &Point::speed);
  double low = 1;
  double high = 0;
  for (const Point& point : points) {
    low = std::min(low, point.score.interval->low);
    high = std::max(high, point.score.interval->high);
  }
  constexpr double kTop = 34;
  constexpr double kBottom = 330;
  constexpr double kRight = kWidth - 150;  // of the plot; names stand beside it
  const Scale x = Widened(slowest.speed, fastest.speed, 60, kRight);
  const Scale y = Widened(100 * low, 100 * high, kBottom, kTop);
  std::string body = Label(0, 16, suite + ": share right, 95 % intervals", "start", "head");
  for (const double tick : Ticks(x)) {
    body += Line(x.At(tick), kTop, x.At(tick), kBottom, "grid");
    body += Label(x.At(tick), kBottom + 18, fmt::format("{:g}", tick), "middle", "tick");
  }
  for (const double tick : Ticks(y)) {
    body += Line(60, y.At(tick), kRight, y.At(tick), "grid");
    body += Label(52, y.At(tick) + 4, fmt::format("{:g} %", tick), "end", "tick");
  }
  // Names in the order of the points from above, each led to its point, none on another.
  std::ranges::sort(points, std::ranges::greater{}, [](const Point& p) { return *p.score.value; });
  const double n_below = static_cast<double>(points.size());
  double name_y = kTop;
  for (size_t i = 0; i < points.size(); ++i) {
    const Point& point = points[i];
    const double px = x.At(point.speed);
    const double py = y.At(100 * *point.score.value);
    const double room = kBottom - 17 * (n_below - static_cast<double>(i));
    name_y = std::max(name_y + 17, std::min(py, room));
    body += Line(px, y.At(100 * point.score.interval->low), px,
                 y.At(100 * point.score.interval->high), "bar");
    body += Line(px, py, kRight + 14, name_y, "lead");
    body += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" class=\"same\"/>", px, py);
    body += Label(kRight + 18, name_y + 4, point.name);
  }
  body += Label((60 + kRight) / 2, kBottom + 38, "decode, tokens per second", "middle", "tick");
  return Svg(kBottom + 46, "Speed against quality, " + suite, body);
}

std::string AnatomyPlot(const Report& report) {
  int64_t most = 0;
  std::vector<std::string> parts;
  for (const BuildFacts& build : report.builds) {
    most = std::max(most, build.n_weight_bytes);
    for (const Part& part : build.anatomy) {
      if (std::ranges::find(parts, part.name) == parts.end()) parts.push_back(part.name);
    }
  }
  if (most == 0) return "";
  const Scale x{0, static_cast<double>(most), kLabelWidth, kWidth - 90};
  std::string body;
  double y = 8;
  for (const BuildFacts& build : report.builds) {
    if (build.anatomy.empty()) continue;
    body += Label(kLabelWidth - 12, y + 14, build.name, "end");
    double at = x.begin;
    for (const Part& part : build.anatomy) {
      const auto color = std::ranges::find(parts, part.name) - parts.begin();
      const double width = x.At(static_cast<double>(part.n_bytes)) - x.begin;
      body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"18\" class=\"part{}\">"
          "<title>{}: {}</title></rect>",
          at, y, width, color % 6, Escape(part.name), FormatSize(part.n_bytes));
      at += width;
    }
    body += Label(at + 8, y + 14, FormatSize(build.n_weight_bytes), "start", "tick");
    y += kRowHeight;
  }
  double at = kLabelWidth;
  for (size_t i = 0; i < parts.size(); ++i) {
    body +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" class=\"part{}\"/>",
                    at, y + 6, i % 6);
    body += Label(at + 17, y + 16, parts[i], "start", "tick");
    at += 32 + 7.5 * static_cast<double>(parts[i].size());
  }
  return Svg(y + 26, "Bytes of the weights by part", body);
}

std::string HeatMap(const Heat& heat) {
  if (heat.found.empty()) return "";
  constexpr double kCell = 62;
  constexpr double kLeft = 90;
  const auto& first = heat.found.begin()->second;
  std::string body;
  double x = kLeft;
  for (const auto& [length, by_depth] : heat.found) {
    double y = 24;
    body += Label(x + kCell / 2, 16, fmt::format("{}", length), "middle", "tick");
    for (const auto& [depth, share] : by_depth) {
      body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"28\" class=\"heat\" "
          "fill-opacity=\"{:.2f}\"/>",
          x, y, kCell - 2, 0.08 + 0.8 * share);
      body += Label(x + kCell / 2, y + 19, fmt::format("{:.0f} %", 100 * share), "middle");
      y += 30;
    }
    x += kCell;
  }
  double y = 24;
  for (const auto& [depth, share] : first) {
    body += Label(kLeft - 10, y + 19, fmt::format("depth {} %", depth), "end", "tick");
    y += 30;
  }
  return Svg(y + 4, "Needles found by length and depth", body);
}

}  // namespace nibble::measure
