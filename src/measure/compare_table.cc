// A report as tables: aligned text for a terminal, Markdown for a model card. Both print the same
// tables, filled once.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

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

Metric MetricOf(const Comparison& comparison, const std::string& name) {
  const auto metric = std::ranges::find(comparison.metrics, name, &Metric::name);
  return metric == comparison.metrics.end() ? Metric{} : *metric;
}

using Cell = std::string (*)(const Comparison& comparison, const Metric& metric);

std::string ValueCell(const Comparison&, const Metric& metric) {
  std::string value = FormatValue(metric, metric.value);
  if (metric.difference.has_value() || !metric.interval.has_value()) return value;
  return value + " " + FormatDifference(metric);  // the interval of the value itself
}

// Columns of one figure: its values, and what goes with them.
void AddMetric(std::span<const Comparison> comparisons, const std::string& name, Table* table) {
  std::vector<std::pair<std::string, Cell>> columns = {{name, ValueCell}};
  const bool has_difference = std::ranges::any_of(comparisons, [&](const Comparison& comparison) {
    return MetricOf(comparison, name).difference.has_value();
  });
  if (has_difference) {
    columns.emplace_back("difference (95 %)", [](const Comparison&, const Metric& metric) {
      return FormatDifference(metric);
    });
  }
  if (name == "accuracy") {
    const std::pair<std::string, Cell> counts[] = {
        {"p", [](const Comparison& c,
                 const Metric&) { return c.mcnemar_p.has_value() ? FormatP(*c.mcnemar_p) : ""; }},
        {"gained", [](const Comparison& c, const Metric&) { return std::to_string(c.n_gained); }},
        {"lost", [](const Comparison& c, const Metric&) { return std::to_string(c.n_lost); }},
        {"identical answers",
         [](const Comparison& c, const Metric&) { return std::to_string(c.n_identical); }}};
    columns.insert(columns.end(), std::begin(counts), std::end(counts));
  }
  std::string of_reference;
  for (const Comparison& comparison : comparisons) {
    const Metric metric = MetricOf(comparison, name);
    if (metric.reference.has_value()) of_reference = FormatValue(metric, metric.reference);
  }
  for (const auto& [title, cell] : columns) {
    table->head.push_back(title);
    table->rows[0].push_back(std::exchange(of_reference, ""));
    for (size_t i = 0; i < comparisons.size(); ++i) {
      table->rows[i + 1].push_back(cell(comparisons[i], MetricOf(comparisons[i], name)));
    }
  }
}

// The comparisons of one suite: a line a build, the reference's own figures first.
Table SuiteTable(std::span<const Comparison> comparisons, const std::string& reference) {
  Table table{.title = fmt::format("{}, {} records", comparisons[0].suite, comparisons[0].n),
              .head = {"build"},
              .rows = {{reference}}};
  std::vector<std::string> names;
  for (const Comparison& comparison : comparisons) {
    table.rows.push_back({comparison.build});
    for (const Metric& metric : comparison.metrics) {
      if (std::ranges::find(names, metric.name) == names.end()) names.push_back(metric.name);
    }
  }
  for (const std::string& name : names) AddMetric(comparisons, name, &table);
  return table;
}

// A line a build, a column a kind of work; the reference's own figures first.
Table SpeedTable(const Report& report) {
  Table table{.title =
                  "Speed in tokens per second, and its ratio to the reference's "
                  "(slowest run over fastest to fastest over slowest)",
              .head = {"build"},
              .rows = {}};
  for (const SpeedComparison& speed : report.speeds) {
    const std::string work = FormatWork(speed.row);
    if (table.rows.empty()) table.rows.push_back({report.reference});
    auto column = std::ranges::find(table.head, work);
    if (column == table.head.end()) {
      column = table.head.insert(table.head.end(), work);
      table.rows[0].push_back(fmt::format("{:.1f}", Median(speed.reference.runs_tokens_per_s)));
    }
    if (table.rows.back()[0] != speed.build) table.rows.push_back({speed.build});
    auto& row = table.rows.back();
    row.resize(static_cast<size_t>(column - table.head.begin()));
    row.push_back(fmt::format("{:.1f}: {:.2f}x ({:.2f} to {:.2f})",
                              Median(speed.row.runs_tokens_per_s), speed.ratio,
                              speed.ratio_bounds.low, speed.ratio_bounds.high));
  }
  for (auto& row : table.rows) row.resize(table.head.size());
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
  widths.reserve(table.head.size());
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
  std::vector<Table> tables = {BuildsTable(report)};
  const auto& all = report.comparisons;
  for (auto begin = all.begin(); begin != all.end();) {
    const auto end = std::find_if(begin, all.end(), [&](const Comparison& comparison) {
      return comparison.suite != begin->suite;
    });
    tables.push_back(SuiteTable({begin, end}, report.reference));
    begin = end;
  }
  tables.push_back(SpeedTable(report));
  tables.push_back(ClaimsTable(report));
  std::erase_if(tables, [](const Table& table) { return table.rows.empty(); });
  return tables;
}

std::vector<std::string> RemarksOf(const Report& report) {
  // "forty: worse: minmax (-2.1 points, ...), ...": builds of which the same is said stand
  // together.
  std::vector<std::pair<std::string, std::string>> lines;
  const auto add = [&](const std::string& what, const std::string& of) {
    const auto line = std::ranges::find(lines, what, &std::pair<std::string, std::string>::first);
    if (line == lines.end()) {
      lines.emplace_back(what, of);
    } else {
      line->second += ", " + of;
    }
  };
  for (const BuildFacts& build : report.builds) {
    for (const std::string& note : build.notes) add(note, build.name);
  }
  for (const Comparison& comparison : report.comparisons) {
    const std::string& verdict = comparison.verdict;
    const size_t figures = std::min(verdict.find(" ("), verdict.size());
    add(comparison.suite + ": " + verdict.substr(0, figures),
        comparison.build + verdict.substr(figures));
    for (const std::string& note : comparison.notes) {
      add(comparison.suite + ": note: " + note, comparison.build);
    }
  }
  std::vector<std::string> remarks;
  remarks.reserve(lines.size());
  for (const auto& [what, of] : lines) remarks.push_back(fmt::format("{}: {}", what, of));
  return remarks;
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
