// What a command's file gives to main: options registered on the parser, and the action that the
// user chose. One file per command: Add<Command>() registers it and says what it does.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/result.h"

namespace nibble::cli {

// Exit codes: 0 done, 1 the answer is no, 2 bad usage or input (an Error).
inline constexpr int kDone = 0;
inline constexpr int kAnswerIsNo = 1;
inline constexpr int kBadInput = 2;

// Gives the exit code, or an error that main prints (exit code 2).
using Action = std::function<Result<int>()>;

// Each registers its subcommand on `root`; when that one is chosen, *action becomes its work.
void AddInspect(CLI::App& root, Action* action);
void AddRepack(CLI::App& root, Action* action);
void AddVerify(CLI::App& root, Action* action);
void AddPlan(CLI::App& root, Action* action);
void AddTokenize(CLI::App& root, Action* action);
void AddDetokenize(CLI::App& root, Action* action);
void AddGenerate(CLI::App& root, Action* action);
void AddEval(CLI::App& root, Action* action);
void AddBench(CLI::App& root, Action* action);
void AddCompare(CLI::App& root, Action* action);
void AddServe(CLI::App& root, Action* action);

}  // namespace nibble::cli
