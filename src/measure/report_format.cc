#include "measure/report_format.h"

#include <fmt/format.h>

namespace nibble::measure {
namespace {

double Shown(const Metric& metric, double value) { return metric.is_share ? 100 * value : value; }

}  // namespace

std::string FormatSize(int64_t n_bytes) {
  const auto value = static_cast<double>(n_bytes);
  if (n_bytes == 0) return "-";
  if (value >= 1e9) return fmt::format("{:.2f} GB", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.2f} MB", value / 1e6);
  return fmt::format("{:.1f} kB", value / 1e3);
}

std::string FormatValue(const Metric& metric, const std::optional<double>& value) {
  if (!value.has_value()) return "";
  if (metric.is_share) return fmt::format("{:.1f} %", 100 * *value);
  return fmt::format("{:.3g}", *value);
}

std::string FormatDifference(const Metric& metric) {
  const auto bounds = [&](const char* format) {
    if (!metric.interval.has_value()) return std::string();
    return fmt::format(fmt::runtime(format), Shown(metric, metric.interval->low),
                       Shown(metric, metric.interval->high));
  };
  if (!metric.difference.has_value()) {
    return bounds(metric.is_share ? "({:.1f} to {:.1f})" : "({:.3g} to {:.3g})");
  }
  const double difference = Shown(metric, *metric.difference);
  return metric.is_share ? fmt::format("{:+.1f}", difference) + bounds(" ({:+.1f} to {:+.1f})")
                         : fmt::format("{:+.2g}", difference) + bounds(" ({:+.2g} to {:+.2g})");
}

std::string FormatScore(const Metric& metric) {
  return fmt::format("{} ({:.1f} to {:.1f})", FormatValue(metric, metric.value),
                     100 * metric.interval->low, 100 * metric.interval->high);
}

std::string FormatP(double p) { return p < 0.001 ? "< 0.001" : fmt::format("{:.3f}", p); }

std::string FormatWork(const SpeedFigure& row) {
  std::string text = row.work;
  if (row.n_context_tokens > 0) text += fmt::format(" at {} tokens", row.n_context_tokens);
  if (row.n_sequences > 1) text += fmt::format(", {} at once", row.n_sequences);
  return text;
}

}  // namespace nibble::measure
