// A report as tables: aligned text for a terminal, Markdown for a model card. Both print the same
// tables, filled once.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "measure/compare.h"
#include "measure/report_format.h"

namespace nibble::measure {
namespace {

Table BuildsTable(const Report& report) {
  Table table{.title = "Builds",
              .head = {"build", "format", "weights", "peak memory", "decode tok/s"},
              .rows = {}};
  std::vector<std::string> suites;
  for (const BuildFacts& build : report.builds) {
    for (const auto& [suite, score] : build.scores) {
      if (std::ranges::find(suites, suite) == suites.end()) suites.push_back(suite);
    }
  }
  table.head.insert(table.head.end(), suites.begin(), suites.end());
  for (const BuildFacts& build : report.builds) {
    std::vector<std::string> row = {
        build.name, build.format.empty() ? "unknown" : build.format,
        FormatSize(build.n_weight_bytes), FormatSize(build.n_peak_bytes),
        build.decode_tokens_per_s.has_value() ? fmt::format("{:.1f}", *build.decode_tokens_per_s)
                                              : "-"};
    for (const std::string& suite : suites) {
      const auto score = build.scores.find(suite);
      row.push_back(score == build.scores.end() ? "-" : FormatScore(score->second));
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

Table ComparisonsTable(const Report& report) {
  Table table{.title = "Against " + report.reference,
              .head = {"suite", "build", "figure", report.reference, "build's", "difference (95 %)",
                       "p", "gained", "lost", "identical"},
              .rows = {}};
  for (const Comparison& comparison : report.comparisons) {
    for (const Metric& metric : comparison.metrics) {
      const bool is_accuracy = metric.name == "accuracy";
      table.rows.push_back(
          {comparison.suite, comparison.build, metric.name, FormatValue(metric, metric.reference),
           FormatValue(metric, metric.value), FormatDifference(metric),
           is_accuracy && comparison.mcnemar_p.has_value() ? FormatP(*comparison.mcnemar_p) : "",
           is_accuracy ? fmt::format("{}", comparison.n_gained) : "",
           is_accuracy ? fmt::format("{}", comparison.n_lost) : "",
           is_accuracy ? fmt::format("{}/{}", comparison.n_identical, comparison.n) : ""});
    }
  }
  return table;
}

Table SpeedTable(const Report& report) {
  Table table{.title = "Speed",
              .head = {"work", "build", report.reference + " tok/s", "build's tok/s", "ratio",
                       "slowest to fastest"},
              .rows = {}};
  for (const SpeedComparison& speed : report.speeds) {
    table.rows.push_back(
        {FormatWork(speed.row), speed.build,
         fmt::format("{:.1f}", Median(speed.reference.runs_tokens_per_s)),
         fmt::format("{:.1f}", Median(speed.row.runs_tokens_per_s)),
         fmt::format("{:.2f}x", speed.ratio),
         fmt::format("{:.2f} to {:.2f}", speed.ratio_bounds.low, speed.ratio_bounds.high)});
  }
  return table;
}

Table ClaimsTable(const Report& report) {
  Table table{.title = "What can be said about QAT",
              .head = {"format", "QAT", "same format, non-QAT"},
              .rows = {}};
  for (const FormatClaim& claim : report.claims) {
    table.rows.push_back({claim.format, fmt::format("{}", fmt::join(claim.qat, ", ")),
                          claim.non_qat.empty()
                              ? "missing: no claim"
                              : fmt::format("{}", fmt::join(claim.non_qat, ", "))});
  }
  return table;
}

// Columns of characters, not bytes: all that we print beyond ASCII is one column wide.
size_t WidthOf(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string TextOf(const Table& table) {
  std::vector<size_t> widths;
  for (const std::string& name : table.head) widths.push_back(WidthOf(name));
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], WidthOf(row[i]));
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t i = 0; i < cells.size(); ++i) {
      text += cells[i] + std::string(widths[i] - WidthOf(cells[i]) + 2, ' ');
    }
    return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  };
  std::string text = table.title + "\n" + line(table.head);
  for (const auto& row : table.rows) text += line(row);
  return text + "\n";
}

std::string MarkdownOf(const Table& table) {
  const auto line = [](const std::vector<std::string>& cells) {
    return fmt::format("| {} |\n", fmt::join(cells, " | "));
  };
  std::string text = "**" + table.title + "**\n\n" + line(table.head);
  text += line(std::vector<std::string>(table.head.size(), "---"));
  for (const auto& row : table.rows) text += line(row);
  return text + "\n";
}

}  // namespace

std::vector<Table> TablesOf(const Report& report) {
  std::vector<Table> tables = {BuildsTable(report), ComparisonsTable(report), SpeedTable(report),
                               ClaimsTable(report)};
  std::erase_if(tables, [](const Table& table) { return table.rows.empty(); });
  return tables;
}

std::vector<std::string> RemarksOf(const Report& report) {
  std::vector<std::string> lines;
  for (const BuildFacts& build : report.builds) {
    for (const std::string& note : build.notes) lines.push_back(build.name + ": " + note);
  }
  for (const Comparison& comparison : report.comparisons) {
    lines.push_back(
        fmt::format("{}, {}: {}", comparison.suite, comparison.build, comparison.verdict));
    for (const std::string& note : comparison.notes) {
      lines.push_back(fmt::format("{}, {}: note: {}", comparison.suite, comparison.build, note));
    }
  }
  return lines;
}

std::string ToText(const Report& report) {
  std::string text;
  for (const Table& table : TablesOf(report)) text += TextOf(table);
  for (const std::string& remark : RemarksOf(report)) text += remark + "\n";
  return text;
}

std::string ToMarkdown(const Report& report) {
  std::string text;
  for (const Table& table : TablesOf(report)) text += MarkdownOf(table);
  for (const std::string& remark : RemarksOf(report)) text += "- " + remark + "\n";
  return text;
}

}  // namespace nibble::measure
