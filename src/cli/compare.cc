// nibble compare RUN_A RUN_B...: builds against a reference, with error bars.
#include "measure/compare.h"

#include <fmt/format.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "cli/command.h"

namespace nibble::cli {
namespace {

struct CompareFlags {
  std::vector<std::string> runs;
  std::string reference;
  std::vector<std::string> non_qat;
  std::string markdown;
  std::string html;
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

}  // namespace

void AddCompare(CLI::App& root, Action* action) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command =
      root.add_subcommand("compare", "Compare runs of eval and bench, with error bars");
  command
      ->add_option("RUN", flags->runs,
                   "Directories that eval and bench wrote, or that hold such in folders; "
                   "NAME=DIR names a build")
      ->required()
      ->expected(2, 1000);
  command->add_option("--reference", flags->reference,
                      "Name of the build that the others are compared with; default: the first");
  command->add_option("--non-qat", flags->non_qat,
                      "Names of builds whose weights were not trained for their format");
  command->add_option("--markdown", flags->markdown, "Also write the tables as Markdown, here");
  command->add_option("--html", flags->html, "Also write one self-contained page with plots, here");
  command->add_flag("--json", flags->json, "Print one JSON object instead of tables");
  command->callback([flags, action] { *action = [flags] { return CompareRuns(*flags); }; });
}

}  // namespace nibble::cli
