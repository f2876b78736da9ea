// nibble COMMAND: parses the command line, runs the chosen command, prints its error in one line.
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "cli/command.h"

namespace nibble::cli {
namespace {

int Run(int argc, char** argv) {
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
  const Result<int> code = action();
  if (!code.has_value()) {
    fmt::print(stderr, "nibble: error: {}\n", code.error().message);
    return kBadInput;
  }
  return *code;
}

}  // namespace
}  // namespace nibble::cli

int main(int argc, char** argv) {
  try {
    return nibble::cli::Run(argc, argv);
  } catch (const std::exception& error) {  // memory ran out
    std::fprintf(stderr, "nibble: error: %s\n", error.what());
    return nibble::cli::kBadInput;
  }
}
