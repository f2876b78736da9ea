// A report as one self-contained HTML page: tables, plots, answers that changed side by side. No
// script and nothing from elsewhere; follows dark mode and prints.
#include <fmt/format.h>

#include <set>
#include <string>

#include "measure/compare.h"
#include "measure/report_plots.h"

namespace nibble::measure {
namespace {

constexpr std::string_view kStyle = R"(
:root{--paper:#fff;--ink:#1c1f23;--soft:#626a73;--line:#d9dde2;--tint:#f4f6f8;--good:#1a7f4b;
--bad:#c0362c;--same:#3b6fb6;--p0:#3b6fb6;--p1:#e08a2e;--p2:#3f9c6b;--p3:#9466b8;--p4:#c4524c;--p5:#6f7a86}
@media (prefers-color-scheme:dark){:root{--paper:#15181c;--ink:#e6e9ec;--soft:#9aa4af;--line:#333a42;
--tint:#1e2329;--good:#5cc58d;--bad:#f08a80;--same:#7fb0ee}}
body{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:70rem;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2.2rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.86rem;margin:.6rem 0}
th,td{text-align:left;padding:.3rem .7rem;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600}td{font-variant-numeric:tabular-nums;white-space:nowrap}
details td{white-space:pre-wrap;overflow-wrap:anywhere;min-width:4rem}
svg{width:100%;min-width:38rem;max-width:60rem;height:auto;font:13px system-ui,sans-serif}svg text{fill:var(--ink)}
svg .head{font-weight:600}.lead{stroke:var(--line)}
svg .tick{fill:var(--soft);font-size:12px}.grid{stroke:var(--line)}.zero{stroke:var(--ink);stroke-width:1.5}
.bar{stroke:var(--soft);stroke-width:1.5}.same{fill:var(--same)}.better{fill:var(--good)}.worse{fill:var(--bad)}
.heat{fill:var(--good)}.part0{fill:var(--p0)}.part1{fill:var(--p1)}.part2{fill:var(--p2)}
.part3{fill:var(--p3)}.part4{fill:var(--p4)}.part5{fill:var(--p5)}
details{margin:.4rem 0;border:1px solid var(--line);border-radius:6px;padding:.4rem .8rem}
summary{cursor:pointer}.note{color:var(--soft)}pre{white-space:pre-wrap;margin:0;font-size:.84rem}
@media print{:root{--paper:#fff;--ink:#000;--soft:#444;--line:#bbb;--tint:#fff}body{margin:0;padding:0}
details,svg,tr{break-inside:avoid}h2{break-after:avoid}svg{min-width:0}.wide{overflow:visible}
td{white-space:normal}table{font-size:.66rem}th,td{padding:.2rem .3rem}}
)";

std::string HtmlTable(const Table& table) {
  std::string html = "<div class=\"wide\"><table><tr>";
  for (const std::string& name : table.head) html += "<th scope=\"col\">" + Escape(name) + "</th>";
  html += "</tr>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (const std::string& cell : row) html += "<td>" + Escape(cell) + "</td>";
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string Section(std::string_view title, const std::string& body) {
  if (body.empty()) return "";
  return fmt::format("<section><h2>{}</h2>\n{}</section>\n", Escape(title), body);
}

std::string FlipsOf(const Report& report) {
  constexpr size_t kMostShown = 200;
  std::string html;
  for (const Comparison& comparison : report.comparisons) {
    if (comparison.flips.empty()) continue;
    Table table{.title = "",
                .head = {"record", "", "prompt", "expected", report.reference, comparison.build},
                .rows = {}};
    for (const Flip& flip : comparison.flips) {
      if (table.rows.size() == kMostShown) break;
      table.rows.push_back({flip.id, flip.gained ? "gained" : "lost", flip.prompt, flip.expected,
                            flip.reference_answer, flip.answer});
    }
    html += fmt::format("<details><summary>{}, {}: {} answers, {} shown</summary>{}</details>\n",
                        Escape(comparison.suite), Escape(comparison.build), comparison.flips.size(),
                        table.rows.size(), HtmlTable(table));
  }
  return html;
}

}  // namespace

std::string ToHtml(const Report& report) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
      "<meta name=\"color-scheme\" content=\"light dark\">"
      "<title>Builds against {0}</title><style>{1}</style></head><body>\n"
      "<h1>Builds against {0}</h1>\n"
      "<p class=\"note\">Pairs of records; 95 % intervals by the paired bootstrap (10,000 "
      "resamples, "
      "seed 0); p by McNemar's exact test. An interval that holds 0 shows no difference.</p>\n",
      Escape(report.reference), kStyle);
  html += Section("Differences in accuracy", DifferencePlot(report));
  std::set<std::string> suites;
  for (const BuildFacts& build : report.builds) {
    for (const auto& [suite, score] : build.scores) suites.insert(suite);
  }
  std::string speeds;
  for (const std::string& suite : suites) speeds += SpeedQualityPlot(report, suite);
  html += Section("Speed against quality", speeds);
  html += Section("What the weights are made of", AnatomyPlot(report));
  for (const Heat& heat : report.heats) {
    html += Section("Needles found, " + heat.build, HeatMap(heat));
  }
  for (const Table& table : TablesOf(report)) html += Section(table.title, HtmlTable(table));
  std::string remarks;
  for (const std::string& remark : RemarksOf(report))
    remarks += "<li>" + Escape(remark) + "</li>\n";
  html += Section("In words", remarks.empty() ? "" : "<ul>" + remarks + "</ul>\n");
  html += Section("Answers that changed", FlipsOf(report));
  return html + "</body></html>\n";
}

}  // namespace nibble::measure
