// Builds served in turn and asked the same: the loop of `nibble compare --matrix`.
//
// One server at a time: start, wait until it is ready, run the suites as `nibble eval` and `nibble
// bench` would by hand, stop, upload. What fails is named and the next one begins. What an earlier
// call has done is not done again. Tested by matrix_test.cc and tests/interop/test_matrix.py.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "measure/matrix_plan.h"

namespace nibble::measure {

struct MatrixOutcome {
  std::vector<std::filesystem::path> complete;  // folders of the builds that have all suites
  std::vector<std::string> faults;              // "build: suite: what", in the order of the plan
};

// Leaves OUT/BUILD/SUITE as --out does, and beside them what the server and the suites printed
// (*.log) and plan.json. nibble: the program that runs suites. say: gets a line at each step. Takes
// SIGINT and SIGTERM, and gives an error then with everything stopped. Other errors: OUT cannot be
// written, or holds runs of another plan.
Result<MatrixOutcome> RunMatrix(const MatrixPlan& plan, const std::string& nibble,
                                const std::function<void(const std::string& line)>& say);

}  // namespace nibble::measure
