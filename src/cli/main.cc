// nibble COMMAND: parses the command line, runs the chosen command, prints its error in one line.
#include <fmt/format.h>

#include <cstdio>

#include "cli/command.h"

int main(int argc, char** argv) {
  using namespace nibble::cli;
  CLI::App app{"nibble: exact 4-bit Gemma 4 checkpoints: repack, verify, run"};
  app.set_version_flag("--version", "nibble " NIBBLE_VERSION);
  app.require_subcommand(1);
  Action action;
  for (const auto add : {AddInspect, AddRepack, AddVerify, AddPlan, AddTokenize, AddDetokenize,
                         AddGenerate, AddEval, AddBench, AddCompare, AddServe}) {
    add(app, &action);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kBadInput;
  }
  const nibble::Result<int> code = action();
  if (!code.has_value()) {
    fmt::print(stderr, "nibble: error: {}\n", code.error().message);
    return kBadInput;
  }
  return *code;
}
