// The plan of `nibble compare --matrix`: which builds are served in turn, and what each is asked.
// docs/MEASURING.md describes the file. Tested by matrix_test.cc.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace nibble::measure {

struct MatrixBuild {
  std::string name;
  std::vector<std::string> command;  // that serves it
  std::string url;
  // What may not change between two calls: the model and its arguments, or the command.
  Json identity;
};

struct MatrixSuite {
  std::string name;  // of eval's suites, or "bench"
  std::vector<std::string> arguments = {};
};

struct MatrixPlan {
  std::filesystem::path out;
  std::vector<MatrixBuild> builds;
  std::vector<MatrixSuite> suites;
  double ready_s = 900;                  // that a server may take to be ready
  double grace_s = 30;                   // that it may take to stop
  std::vector<std::string> upload = {};  // empty: nothing; {build} and {dir} stand for those
};

// nibble: the program that serves "model". Errors name the file and the field.
Result<MatrixPlan> ReadMatrixPlan(const std::filesystem::path& path, const std::string& nibble);

}  // namespace nibble::measure
