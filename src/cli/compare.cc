// nibble compare RUN_A RUN_B...: builds against a reference, with error bars. With --matrix the
// runs are made first.
#include "measure/compare.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "cli/command.h"
#include "measure/matrix.h"

namespace nibble::cli {
namespace {

struct CompareFlags {
  std::vector<std::string> runs;
  std::string reference;
  std::vector<std::string> non_qat;
  std::string markdown;
  std::string html;
  std::string matrix;
  bool json = false;
};

Result<int> CompareRuns(const CompareFlags& flags) {
  std::vector<measure::Build> builds;
  for (const std::string& run : flags.runs) {
    NIBBLE_ASSIGN_OR_RETURN(measure::Build build, measure::ReadBuild(run));
    builds.push_back(std::move(build));
  }
  NIBBLE_ASSIGN_OR_RETURN(const measure::Report report,
                          measure::Compare(std::move(builds), flags.reference,
                                           std::set(flags.non_qat.begin(), flags.non_qat.end())));
  if (!flags.markdown.empty()) {
    NIBBLE_RETURN_IF_ERROR(WriteFile(flags.markdown, ToMarkdown(report)));
  }
  if (!flags.html.empty()) NIBBLE_RETURN_IF_ERROR(WriteFile(flags.html, ToHtml(report)));
  fmt::print("{}", flags.json ? ToJson(report).dump() + "\n" : ToText(report));
  return kDone;
}

// The plan's builds, as far as they could be measured.
Result<int> CompareMatrix(CompareFlags flags) {
  const std::string nibble = std::filesystem::read_symlink("/proc/self/exe").string();
  NIBBLE_ASSIGN_OR_RETURN(const measure::MatrixPlan plan,
                          measure::ReadMatrixPlan(flags.matrix, nibble));
  NIBBLE_ASSIGN_OR_RETURN(const measure::MatrixOutcome outcome,
                          measure::RunMatrix(plan, nibble, [](const std::string& line) {
                            fmt::print(stderr, "{}\n", line);
                          }));
  for (const auto& build : outcome.complete) flags.runs.push_back(build.string());
  if (flags.runs.size() > 1) NIBBLE_RETURN_IF_ERROR(CompareRuns(flags));
  if (outcome.faults.empty()) return kDone;
  fmt::print(stderr, "failed, and to be done by the same command again:\n");
  for (const std::string& fault : outcome.faults) fmt::print(stderr, "  {}\n", fault);
  return kAnswerIsNo;
}

}  // namespace

void AddCompare(CLI::App& root, Action* action) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command =
      root.add_subcommand("compare", "Compare runs of eval and bench, with error bars");
  command->add_option("RUN", flags->runs,
                      "Directories that eval and bench wrote, or that hold such in "
                      "folders; NAME=DIR names a build");
  command->add_option(
      "--matrix", flags->matrix,
      "First make the runs by this plan, a JSON file: {\"out\": DIR, \"builds\": [{\"name\", "
      "\"model\" that nibble serves or \"command\" and \"url\"}], \"suites\": [{\"suite\", "
      "\"arguments\"}], \"upload\": [COMMAND]}; docs/MEASURING.md has all of it");
  command->add_option("--reference", flags->reference,
                      "Name of the build that the others are compared with; default: the first");
  command->add_option("--non-qat", flags->non_qat,
                      "Names of builds whose weights were not trained for their format");
  command->add_option("--markdown", flags->markdown, "Also write the tables as Markdown, here");
  command->add_option("--html", flags->html, "Also write one self-contained page with plots, here");
  command->add_flag("--json", flags->json, "Print one JSON object instead of tables");
  command->callback([flags, action] {
    if (flags->matrix.empty() && flags->runs.size() < 2)
      throw CLI::RequiredError("RUN RUN, or --matrix,");
    *action = [flags] {
      return flags->matrix.empty() ? CompareRuns(*flags) : CompareMatrix(*flags);
    };
  });
}

}  // namespace nibble::cli
